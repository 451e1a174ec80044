"""Family 5: small legal requests whose replies are large, read at once, slowly, or not at all."""

from __future__ import annotations

import itertools
from typing import Any

from tests.soak.attacks.catalogue import attack
from tests.soak.attacks.stage import Over, Stage, Wire, message, post

HORIZON = [round(0.1 * number, 1) for number in range(1, 257)]
LEVELS = [round(0.05 + 0.9 * number / 16, 6) for number in range(16)]
# As many as the server sends: two million numbers.
WIDE = {"observations": [[1.0, 0.5]] * 113, "horizon": HORIZON, "levels": LEVELS}
SMOOTH = {"observations": [[1.0, 0.5]] * 10_000, "smooth": True, "levels": LEVELS}
SAMPLES = {"observations": [[1.0, 0.5]] * 950, "samples": 1_024}
STREAMED = {**SAMPLES, "stream": True}
ATTENTION = {"observations": [[1.0, 0.5]] * 2_000, "mode": "attention", "levels": LEVELS}
ALTERNATIVES = {"n": 16, "top_n_tokens": 32, "temperature": 1.0, "seed": 1}
GENERATE = {"inputs": "It was the", "parameters": {**ALTERNATIVES, "max_new_tokens": 128}}
LATENTS = {"inputs": "It was the", "parameters": {**ALTERNATIVES, "max_new_tokens": 64, "return_latents": True}}
COMPLETIONS = {"prompt": ["It was"] * 256, "n": 16, "max_tokens": 32, "logprobs": 5, "seed": 1}
FAIR = frozenset({200, 422, 429, 503})
SLOW_SECONDS = 0.05
# Before the next: an attacker that is refused at once does not spin.
REPEAT_SECONDS = 0.02
SLOW_PIECE = 4_096
SMALL_BUFFER = 4_096


def ask_at_once(stage: Stage, documents: list[tuple[str, Any]], lanes: int, *, pause: float = 0.0) -> None:
    """Ask for large replies on so many connections, and read them: with a pause before each piece, slowly."""
    requests = [post(path, document) for path, document in documents]

    def slow_down(wire: Wire) -> None:
        if pause:
            wire.pause, wire.piece = pause, SLOW_PIECE

    options: dict[str, Any] = {"receive_buffer": SMALL_BUFFER} if pause else {}
    claim = "a large reply comes or is refused in words"
    stage.begin()
    stage.keep_asking(lanes, requests, claim, FAIR, pause=REPEAT_SECONDS, prepare=slow_down, **options)


def ask_and_be_deaf(stage: Stage, documents: list[tuple[str, Any]], lanes: int) -> None:
    """Ask for large replies on so many connections, and read nothing."""
    requests = [post(path, document) for path, document in documents]
    stage.begin()
    turns = itertools.cycle(requests)

    def ask(wire: Wire) -> None:
        wire.send(next(turns))
        stage.sleep(stage.left)

    stage.lanes(lanes, ask, receive_buffer=SMALL_BUFFER)


@attack(5)
def replies_wide(stage: Stage) -> None:
    """113 observations × 256 horizons × 16 levels, 24 at once."""
    ask_at_once(stage, [("/filter", WIDE)], 24)


@attack(5)
def replies_wide_64(stage: Stage) -> None:
    """The same, 64 at once."""
    ask_at_once(stage, [("/filter", WIDE)], 64)


@attack(5)
def replies_wide_slowly(stage: Stage) -> None:
    """The same, 64 at once, each read 80 kB a second."""
    ask_at_once(stage, [("/filter", WIDE)], 64, pause=SLOW_SECONDS)


@attack(5)
def replies_wide_unread(stage: Stage) -> None:
    """The same, 128 at once, none of them read."""
    ask_and_be_deaf(stage, [("/filter", WIDE)], 128)


@attack(5)
def replies_smooth(stage: Stage) -> None:
    """Smoothed series of 10,000, 16 at once."""
    ask_at_once(stage, [("/filter", SMOOTH)], 16)


@attack(5)
def replies_of_samples(stage: Stage) -> None:
    """1,024 samples of each of 950 steps, 32 at once, in one piece and streamed."""
    ask_at_once(stage, [("/filter", SAMPLES), ("/filter", STREAMED)], 32)


@attack(5)
def replies_of_samples_unread(stage: Stage) -> None:
    """The same, 64 at once, none of them read."""
    ask_and_be_deaf(stage, [("/filter", SAMPLES), ("/filter", STREAMED)], 64)


@attack(5)
def replies_of_attention(stage: Stage) -> None:
    """Series of 2,000 by attention over all of it, 16 at once."""
    ask_at_once(stage, [("/filter", ATTENTION)], 16)


@attack(5)
def replies_of_texts(stage: Stage) -> None:
    """16 continuations with 32 alternatives of each token, and with latents, 24 at once."""
    ask_at_once(stage, [("/generate", GENERATE), ("/generate", LATENTS)], 24)


@attack(5)
def replies_of_texts_streamed_unread(stage: Stage) -> None:
    """The same streamed, 64 at once, none of them read."""
    ask_and_be_deaf(stage, [("/generate", {**document, "stream": True}) for document in (GENERATE, LATENTS)], 64)


@attack(5)
def replies_of_completions(stage: Stage) -> None:
    """256 prompts × 16 choices with 5 alternatives of each token, 8 at once."""
    ask_at_once(stage, [("/v1/completions", COMPLETIONS), ("/v1/completions", {**COMPLETIONS, "stream": True})], 8)


@attack(5)
def replies_of_all_kinds(stage: Stage) -> None:
    """All of these, 64 at once, every other connection slow."""
    documents: list[tuple[str, Any]] = [
        ("/filter", WIDE),
        ("/filter", SMOOTH),
        ("/filter", SAMPLES),
        ("/filter", STREAMED),
        ("/filter", ATTENTION),
        ("/generate", GENERATE),
        ("/generate", LATENTS),
        ("/v1/completions", COMPLETIONS),
    ]
    ask_at_once(stage, documents, 64, pause=SLOW_SECONDS / 5)


@attack(5)
def frames_wide(stage: Stage) -> None:
    """Live streams with 256 horizons × 16 levels, asked 500 at a time, and read slowly or not."""
    question = message({"horizon": HORIZON, "levels": LEVELS, "samples": 16})
    observations = message({"y": [1.0, 0.5]}) * 500
    stage.begin()

    def lane(is_deaf: bool) -> None:
        while stage.is_on:
            try:
                with stage.upgrade(receive_buffer=SMALL_BUFFER) as wire:
                    wire.pause = SLOW_SECONDS
                    wire.send(question + observations)
                    while not is_deaf:
                        wire.skim()
                    stage.sleep(stage.left)
            except OSError:
                stage.count("connections lost")
                stage.sleep(0.02)
            except Over:
                return

    stage.together([lambda: lane(False)] * 16 + [lambda: lane(True)] * 16)
