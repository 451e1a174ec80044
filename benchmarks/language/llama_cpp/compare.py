"""Tokens per second beside llama.cpp: `python -m rfa.benchmarks.language.llama_cpp --python PYTHON`.

Every round measures each server and model once, at 1 and at 32 requests, with the same prompts of random tokens. All
processes use one core. rfa-server is measured over HTTP, including the client, and in the process; llama.cpp only in
the process, where it needs neither HTTP nor a queue. Rates are medians of the rounds, and so are the ratios, which
compare measurements of the same round. They are based on processor time, because other programs may use the core.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil  # type: ignore[import-untyped]

from rfa.benchmarks.language.llama_cpp.rival import Shape
from rfa.benchmarks.load.server import Target, started
from rfa.measured import origin
from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.text.compiled_language import CompiledLanguageRuntime
from rfa.runtime.text.contexts import SlotContext

RIVAL = Path(__file__).with_name("rival.py")
KINDS = ("F32", "F16", "Q8_0")
REQUESTS = (1, 32)
PROMPT_TOKENS, NEW_TOKENS = 128, 64
HEAD_SIZE = 64
# Rows of a matrix in GGUF consist of blocks of this many weights.
BLOCK = 32
IN_PROCESS, HTTP = "rfa-server, in process", "rfa-server, HTTP"
PATIENCE_SECONDS = 600.0
SETTINGS = {"processes": 1, "workers": 1, "prefix_cache_bytes": 0}
Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Sample:
    """One measurement: generated tokens, elapsed time, processor time, and its part for the prompts, if known."""

    tokens: int
    seconds: float
    cpu_seconds: float
    prompt_cpu_seconds: float | None = None


Measure = Callable[[Prompts], Sample]


def equal_shape(bundle: Bundle, parameters: int) -> Shape:
    """Return a Llama with the vocabulary, width and depth of a bundle. Its feed-forward layers make the sizes equal."""
    config = bundle.config
    width, layers, vocabulary = config["d_model"], config["n_layers"], config["vocab_size"]
    others = vocabulary * width + width + layers * (4 * width * width + 2 * width)
    hidden = BLOCK * round((parameters - others) / (3 * width * layers * BLOCK))
    return Shape(vocabulary, width, layers, width // HEAD_SIZE, hidden, PROMPT_TOKENS + NEW_TOKENS, max(REQUESTS))


def prompts(count: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Return prompts of random tokens, without the special token 0."""
    draw = np.random.default_rng([seed, count])
    return [[int(token) for token in row] for row in draw.integers(1, vocabulary, (count, PROMPT_TOKENS))]


@contextmanager
def rival(python: str, shape: Shape, kind: str) -> Iterator[tuple[Measure, dict[str, Any]]]:
    """Run llama.cpp in another process, and yield how to measure it and what it reports about itself."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [python, str(RIVAL), json.dumps(asdict(shape)), kind],
        env={**environment, "OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process of llama.cpp has no pipes")
    to, of = process.stdin, process.stdout

    def read() -> dict[str, Any]:
        line = of.readline()
        if not line:
            raise RuntimeError(f"the process of llama.cpp ended with {process.wait()}")
        document: dict[str, Any] = json.loads(line)
        return document

    def measure(texts: Prompts) -> Sample:
        to.write(json.dumps({"prompts": texts, "new_tokens": NEW_TOKENS}) + "\n")
        to.flush()
        return Sample(**read())

    try:
        yield measure, read()
    finally:
        to.close()
        process.wait()


class InProcess:
    """The compiled runtime of the server, without the server."""

    def __init__(self, bundle: Bundle) -> None:
        config = bundle.config
        self._runtime = CompiledLanguageRuntime(bundle, streams=max(REQUESTS))
        self._noise = np.zeros((max(REQUESTS), config["n_heads"], 2 * config["head_dim"]), np.float32)

    def __call__(self, texts: Prompts) -> Sample:
        """Generate the most probable continuations of prompts."""
        runtime = self._runtime
        started_at, cpu = time.perf_counter(), time.process_time()
        contexts = [runtime.start("recurrent") for _ in texts]
        slots = [context for context in contexts if isinstance(context, SlotContext)]
        output, advances = runtime.read_prompts(slots, texts)
        prompts_read = time.process_time() - cpu
        for step in range(NEW_TOKENS):
            for advance in advances:
                advance.commit()
            tokens = [int(token) for token in output.logits.argmax(1)]
            if step < NEW_TOKENS - 1:
                output, advances = runtime.step(contexts, tokens, self._noise[: len(texts)])  # type: ignore[assignment]
        for context in contexts:
            context.release()
        seconds, cpu = time.perf_counter() - started_at, time.process_time() - cpu
        return Sample(len(texts) * NEW_TOKENS, seconds, cpu, prompts_read)


class OverHTTP:
    """The server, with its client in this process."""

    def __init__(self, target: Target) -> None:
        self._url = f"{target.url}/v1/completions"
        self._process = psutil.Process(target.pid)

    def __call__(self, texts: Prompts) -> Sample:
        """Generate the most probable continuations of prompts."""
        started_at, cpu = time.perf_counter(), self._cpu_seconds()
        tokens = asyncio.run(self._complete(texts))
        return Sample(tokens, time.perf_counter() - started_at, self._cpu_seconds() - cpu)

    def _cpu_seconds(self) -> float:
        used = [process.cpu_times() for process in (self._process, *self._process.children(recursive=True))]
        return time.process_time() + sum(times.user + times.system for times in used)

    async def _complete(self, texts: Prompts) -> int:
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS, limits=httpx.Limits(max_connections=None)) as client:
            options = {"max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
            bodies = [{"prompt": list(text), **options} for text in texts]
            replies = await asyncio.gather(*(client.post(self._url, json=body) for body in bodies))
        for reply in replies:
            reply.raise_for_status()
        return sum(reply.json()["usage"]["completion_tokens"] for reply in replies)


Samples = Mapping[tuple[str, int], Sequence[Sample]]


def rows_of(samples: Samples) -> list[dict[str, Any]]:
    """Return the rates of each system and number of requests."""
    return [
        {
            "system": name,
            "requests": requests,
            "tokens_per_cpu_second": statistics.median(map(_rate, found)),
            "tokens_per_second": statistics.median(one.tokens / one.seconds for one in found),
            **_phases(found, requests),
        }
        for (name, requests), found in samples.items()
    ]


def _phases(samples: Sequence[Sample], requests: int) -> dict[str, float]:
    """Return the microseconds per prompt token and per new token, if they were measured separately."""
    prompts = [one.prompt_cpu_seconds for one in samples if one.prompt_cpu_seconds is not None]
    if not prompts:
        return {}
    steps = [one.cpu_seconds - prompt for one, prompt in zip(samples, prompts, strict=True)]
    return {
        "us_per_prompt_token": 1e6 * statistics.median(prompts) / (requests * PROMPT_TOKENS),
        # The first new token results from the prompt.
        "us_per_new_token": 1e6 * statistics.median(steps) / (requests * (NEW_TOKENS - 1)),
    }


def ratios_of(samples: Samples) -> list[dict[str, Any]]:
    """Return the ratios of our rates to those of each other system."""
    ours = {"in_process": IN_PROCESS, "http": HTTP}
    return [
        {
            "system": name,
            "requests": requests,
            **{key: _ratio(samples[own, requests], found) for key, own in ours.items()},
        }
        for (name, requests), found in samples.items()
        if name not in ours.values()
    ]


def _ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> float:
    return statistics.median(_rate(a) / _rate(b) for a, b in zip(ours, theirs, strict=True))


def _rate(sample: Sample) -> float:
    return sample.tokens / sample.cpu_seconds


def run(python: str, bundle_path: Path, rounds: int, core: int) -> dict[str, Any]:
    """Measure everything on one core, and return the result document.

    Args:
        python: Interpreter that can import `llama_cpp` and `gguf`.
    """
    described = origin("python -m rfa.benchmarks.language.llama_cpp")
    os.sched_setaffinity(0, {core})
    bundle = open_bundle(bundle_path)
    parameters = sum(array.size for name, array in bundle.weights().items() if not name.startswith("initial."))
    shape = equal_shape(bundle, parameters)
    systems: dict[str, Measure] = {IN_PROCESS: InProcess(bundle)}
    samples: dict[tuple[str, int], list[Sample]] = {}
    with ExitStack() as stack:
        systems[HTTP] = OverHTTP(stack.enter_context(started([bundle_path], SETTINGS, [core])))
        reports = {}
        for kind in KINDS:
            name = f"llama.cpp, {kind}"
            systems[name], reports[name] = stack.enter_context(rival(python, shape, kind))
        names = list(systems)
        for index in range(-1, rounds):  # the first round warms up
            for requests in REQUESTS:
                texts = prompts(requests, shape.vocabulary, index + 1)
                for name in names[index % len(names) :] + names[: index % len(names)]:
                    sample = systems[name](texts)
                    if index >= 0:
                        samples.setdefault((name, requests), []).append(sample)
    ordered = {key: samples[key] for key in sorted(samples, key=lambda key: (key[1], names.index(key[0])))}
    first = next(iter(reports.values()))
    return {
        **described,
        "bundle": bundle.name,
        "parameters": parameters,
        "llama_cpp": {**{name: first[name] for name in ("parameters", "system", "version")}, "shape": asdict(shape)},
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "rounds": rounds,
        "rows": rows_of(ordered),
        "ratios": ratios_of(ordered),
    }
