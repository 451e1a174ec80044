"""Family 11: requests at the edge of what is legal, which a server may refuse but at which it must not fail."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.soak.attacks.answers import Answer
from tests.soak.attacks.catalogue import attack
from tests.soak.attacks.stage import Stage, Wire
from tests.soak.requests import CLOSE, message, post

FAIR = frozenset({200, 422, 429, 503})
LARGEST = 1e12
EXTREMES = (0, 1e11, LARGEST, -LARGEST, 1e-300, 5e-324, -0.0, 1, -1, 1e6, 123456789012, 2**39, None)
TIMES = (0.0, 5e-324, 1e-12, 1e-3, 1.0, 60.0, 1e6, 1e15)
LEVELS = (5e-324, 1e-12, 0.5, 0.9, 0.9999999999999999, 0.999999999, 0.99999999, 1 - 2**-53, 0.9 + 2**-53, 0.90000000001)
SIZES = {"auto": 1, "linear": 2, "oscillator": 2}
NUMBER_OF_SERIES = 400


def former_failures() -> Iterator[dict[str, Any]]:
    """Those that once failed, and their like."""
    yield {"model": "auto", "observations": [[0], [1e11]]}
    yield {"model": "auto", "observations": [[0], [1e12]], "levels": [0.5, 0.9], "horizon": [300.0]}
    yield {"model": "auto", "observations": [[1e12], [0], [-1e12], [0]] * 20}
    yield {"model": "auto", "observations": [[0]] * 200 + [[1e12]]}
    yield {"model": "auto", "observations": [[5e-324], [1e12]], "smooth": True}
    yield {"observations": [[1, 1]], "levels": [0.9999999999999999]}
    yield {"observations": [[1, 1]], "levels": [0.9999999999999999], "horizon": [0.1]}
    yield {"observations": [[1, 1]], "levels": [0.9, 0.9000000000000001]}
    yield {"observations": [[1, 1]], "levels": [0.999999999]}
    yield {"observations": [[1, 1]], "levels": [0.99999999, 0.999999999]}
    yield {"observations": [[1, 1]], "levels": [5e-324, 1e-300]}
    yield {"observations": [[1e12, -1e12], [-1e12, 1e12]] * 50, "smooth": True, "levels": [0.9999999999999999]}
    yield {"observations": [None], "times": [1e15], "horizon": [1e9]}
    yield {"observations": [[1, 1], [1, 1]], "times": [-1e15, 1e15], "smooth": True}
    whole = {"model": "oscillator", "mode": "attention"}
    yield {**whole, "observations": [[1, 1]] * 20, "times": [0.0] * 20}
    yield {**whole, "observations": [[1e12, None]] * 20, "noise": [1e-6] * 20, "smooth": False}


def random_series(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Legal series of extremes, of every model, mode and kind."""
    rng = random.Random(seed)
    for _ in range(count):
        model = rng.choice(list(SIZES))
        length = rng.choice((1, 2, 3, 10, 70))
        times = list(itertools.accumulate(rng.choice(TIMES[:-1]) * rng.choice((0, 1)) for _ in range(length)))
        mode = rng.choice(("recurrent", "recurrent", "attention" if model == "oscillator" else "recurrent"))
        yield {
            "model": model,
            "observations": [_extreme(rng, SIZES[model]) for _ in range(length)],
            "times": rng.choice((None, times)),
            "noise": rng.choice((None, [rng.choice((1e-6, 1, 1e6, None)) for _ in range(length)])),
            "levels": rng.choice((None, rng.sample(LEVELS, rng.choice((1, 2, 5))))),
            "horizon": rng.choice(([], [5e-324], [1e9], [0.1, 0.1, 1e-9])),
            "samples": rng.choice((0, 1, 16)),
            "seed": rng.choice((None, 0, 2**64 - 1)),
            "mode": mode,
            "smooth": rng.random() < 0.3,
            "stream": rng.random() < 0.3,
            "deadline_ms": rng.choice((None, None, 1, 3_600_000)),
        }


def _extreme(rng: random.Random, size: int) -> list[float | None] | None:
    return None if rng.random() < 0.1 else [rng.choice(EXTREMES) for _ in range(size)]


def texts() -> Iterator[tuple[str, dict[str, Any]]]:
    """Legal generations at the edge."""
    prompts = ("", " ", "\0", "\U0010ffff", "🙂" * 50, "<|endoftext|>" * 20, "\u202e\u0301" * 20, "a" * 5_000)
    edges: list[dict[str, Any]] = [
        {"temperature": 1e-300},
        {"temperature": 5e-324, "top_p": 5e-324},
        {"temperature": 100, "top_k": 1_000_000},
        {"temperature": 0},
        {"top_p": 1.0, "top_k": 1},
        {"latent_noise": 10, "n": 16},
        {"latent_noise": 5e-324},
        {"seed": 2**64 - 1, "n": 16},
        {"stop": ["\0", "\U0010ffff", "a" * 256]},
        {"truncate": 1},
        {"deadline_ms": 1},
        {"top_n_tokens": 32, "return_latents": True},
        {"decode": "attention", "n": 16},
        {"return_full_text": True, "details": False},
    ]
    for prompt, parameters in itertools.product(prompts, edges):
        yield "/generate", {"inputs": prompt, "parameters": {"max_new_tokens": 3, **parameters}}
    for prompt in prompts:
        yield "/v1/completions", {"prompt": [prompt, [0], [1, 2, 3]][0:1], "max_tokens": 2, "n": 16, "logprobs": 5}
        yield "/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 1e-300, "echo": True}
    yield "/v1/completions", {"prompt": [[0], [1]], "max_tokens": 2, "top_p": 5e-324}
    yield "/v1/completions", {"prompt": None, "max_tokens": 1, "stop": "\0"}


def check(stage: Stage, name: str, answer: Answer | None) -> None:
    """The request was served, or refused for a reason."""
    stage.expect("a legal request never fails", answer, FAIR, name[:200])
    if answer is not None and (b'"engine_error"' in answer.body or b'"internal_error"' in answer.body):
        stage.claim("a legal request never fails", False, f"{name[:200]}: an error in the reply")


def ask_all(stage: Stage, cases: list[tuple[str, Any]]) -> None:
    """Ask every case once, and after that again."""
    requests = [(json.dumps(document), post(path, document)) for path, document in cases]
    stage.begin()
    turns = itertools.cycle(requests)

    def ask(wire: Wire) -> None:
        while True:
            name, request = next(turns)
            answer = wire.ask(request)
            check(stage, name, answer)
            stage.count("cases")
            if answer is None or answer.headers.get("connection") == "close":
                return
            stage.sleep(0.01)

    stage.lanes(2, ask)


@attack(11, seconds=20)
def series_extreme(stage: Stage) -> None:
    """Series of the largest and the smallest numbers, times, levels and horizons that the schema allows."""
    series = [*former_failures(), *random_series(NUMBER_OF_SERIES, 1)]
    ask_all(stage, [("/filter", document) for document in series])


@attack(11, seconds=15)
def texts_extreme(stage: Stage) -> None:
    """Prompts and parameters at the edge of the schema."""
    cases = list(texts())
    random.Random(1).shuffle(cases)
    ask_all(stage, cases)


@attack(11)
def levels_apart(stage: Stage) -> None:
    """Levels that are nearly equal, or nearly one: each has an interval of its own name, or is refused."""
    lists = [[0.9, 0.9000000000000001], [0.999999999], [0.99999999, 0.999999999], [0.9999999999999999]]
    lists += [[0.5, 0.5 + 2.0**-power] for power in range(20, 53)]
    lists += [[1 - 10.0**-power] for power in range(2, 16)]
    stage.begin()

    def ask(wire: Wire) -> None:
        for levels in lists:
            answer = wire.ask(post("/filter", {"observations": [[1.0, 0.5]], "levels": levels, "seed": 1}))
            check(stage, str(levels), answer)
            if answer is not None and answer.status == 200:
                names = list(json.loads(answer.body)["steps"][0]["interval"])
                is_apart = len(names) == len(levels) and sorted(map(float, names)) == sorted(levels)
                stage.claim("each level has an interval of its own name", is_apart, f"{levels}: {names}")
        stage.sleep(0.1)

    stage.lanes(1, ask)


@attack(11, seconds=15)
def streams_extreme(stage: Stage) -> None:
    """The same series on live streams."""
    cases = [*former_failures(), *random_series(NUMBER_OF_SERIES // 2, 2)]
    stage.begin()
    turns = itertools.cycle(case for case in cases if case.get("mode") != "attention")

    def stream(wire: Wire) -> None:
        case = next(turns)
        question = {name: case[name] for name in ("model", "levels", "horizon", "samples", "seed") if case.get(name)}
        times = case.get("times") or [None] * len(case["observations"])
        frames = [message({"t": t, "y": y}) for t, y in zip(times, case["observations"], strict=True)]
        wire.send(message(question) + b"".join(frames) + message({"close": True}))
        last = b""
        try:
            while (received := wire.frame())[0] != CLOSE:
                last = received[1]
        except OSError as error:
            stage.claim("a legal stream ends with a close", not stage.is_on, error)
            return
        is_fair = b'"done"' in last or b'"invalid_request"' in last or b'"overloaded"' in last
        stage.claim("a legal stream never fails", is_fair, f"{json.dumps(case)[:160]}: {last[:120]!r}")
        stage.count("cases")

    stage.lanes(2, stream, on_stream=True)
