"""Texts on one core: compiled code beside ONNX Runtime, in one process and by turns.

    python -m rfa.benchmarks.language.runtimes [--out FILE]

Three things are timed: a piece of a prompt, a step of B streams, and the engine with both, which reads prompts of 128
tokens and writes 64 for 16 streams at a time, as each of four processes does under `rfa bench load text-64`. A round
measures one runtime after the other, in turning order, so that a change of the machine's speed meets both; medians over
the rounds, and the median of the ratios of a round. Before any clock starts, both must give the same text to rounding:
the golden outputs of the bundle.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import uvloop
from tqdm import tqdm

from rfa.benchmarks.load.engine_alone import measure
from rfa.benchmarks.load.scenario import TextLoad
from rfa.benchmarks.load.truth import text_engine, write_cases
from rfa.measured import origin, write_result
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.gpu.device import load_on_cpu
from rfa.runtime.text.language import CpuLanguage, Language
from rfa.service.engine.models import Models
from rfa.service.settings import BUNDLE_ROOT, TextRuntime

RUNTIMES = ("onnx", "compiled")
BATCHES = (1, 8, 16, 24)
STREAMS = 16
LOAD = TextLoad(streams=STREAMS, prompt_tokens=128, new_tokens=64, cases=32)
ROUNDS = 15
CALLS = 5  # timed together
ENGINE_ROUNDS = 5
ENGINE_SECONDS = 6.0
ENGINE_WARMUP = 2.0

Sample = dict[str, list[float]]


def _step_of(runtime: CpuLanguage, rows: int) -> Callable[[], None]:
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, len(runtime.vocabulary), rows).tolist()
    noise = np.zeros((rows, *runtime.latent_shape), np.float32)
    contexts = [runtime.start("recurrent") for _ in range(rows)]

    def step() -> None:
        _, advances = runtime.step(contexts, tokens, noise)
        for advance in advances:
            assert advance.is_finite()
            advance.commit()

    return step


def _piece_of(runtime: CpuLanguage) -> Callable[[], None]:
    tokens = np.random.default_rng(0).integers(0, len(runtime.vocabulary), runtime.prefill_tokens).tolist()
    context = runtime.start("recurrent")

    def piece() -> None:
        (advance,) = runtime.prefill([context], [tokens])
        assert advance.is_finite()
        advance.commit()

    return piece


def _in_turns(cases: dict[str, Callable[[], None]], rounds: int) -> Sample:
    """Seconds of each case in each round."""
    names, samples = list(cases), {name: [] for name in cases}  # type: tuple[list[str], Sample]
    for number in range(-1, rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            begun = time.perf_counter()
            for _ in range(CALLS):
                cases[name]()
            if number >= 0:
                samples[name].append((time.perf_counter() - begun) / CALLS)
    return samples


def summary(tokens: int, samples: Sample) -> dict[str, float]:
    """Tokens a second of both, medians, and the median of the ratios of a round."""
    onnx, compiled = (np.array(samples[name]) for name in RUNTIMES)
    return {
        "onnx_tokens_per_second": round(float(np.median(tokens / onnx)), 1),
        "compiled_tokens_per_second": round(float(np.median(tokens / compiled)), 1),
        "ratio": round(float(np.median(onnx / compiled)), 2),
    }


async def _engines(runtimes: dict[str, CpuLanguage], rounds: int, seconds: float) -> Sample:
    """Seconds a token of the engine in each round."""
    engines, cases = {}, {}
    for name, runtime in runtimes.items():
        engines[name] = text_engine(Models({runtime.name: runtime}, {}, []), LOAD, STREAMS)
        cases[name] = await write_cases(engines[name], LOAD, range(LOAD.cases))
    samples: Sample = {name: [] for name in runtimes}
    try:
        for number in tqdm(range(rounds), desc="engine"):
            for name in sorted(runtimes, reverse=bool(number % 2)):
                rate = await measure(engines[name], LOAD, cases[name], STREAMS, ENGINE_WARMUP, seconds)
                samples[name].append(1 / rate)
    finally:
        for engine in engines.values():
            engine.close()
    return samples


def run(bundle_path: Path, rounds: int = ROUNDS, engine_rounds: int = ENGINE_ROUNDS) -> dict[str, Any]:
    """Measure a language bundle on one core of those that this process may use."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        bundle = open_bundle(bundle_path)
        runtimes = {
            name: cast(
                CpuLanguage,
                load_on_cpu(bundle, cast(TextRuntime, name), streams=64 + sum(BATCHES), max_rows=max(BATCHES)),
            )
            for name in RUNTIMES
        }
        piece = _in_turns({name: _piece_of(runtime) for name, runtime in runtimes.items()}, rounds)
        steps = {
            rows: _in_turns({name: _step_of(runtime, rows) for name, runtime in runtimes.items()}, rounds)
            for rows in tqdm(BATCHES, desc="steps")
        }
        engine = uvloop.run(_engines(runtimes, engine_rounds, ENGINE_SECONDS))
    finally:
        os.sched_setaffinity(0, cores)
    return {
        "bundle": bundle.name,
        "digest": bundle.digest,
        **origin("python -m rfa.benchmarks.language.runtimes"),
        f"prompt, pieces of {Language.prefill_tokens}": summary(Language.prefill_tokens, piece),
        **{f"step of {rows}": summary(rows, samples) for rows, samples in steps.items()},
        f"engine, {STREAMS} streams of {LOAD.prompt_tokens} + {LOAD.new_tokens}": summary(1, engine),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m rfa.benchmarks.language.runtimes`."""
    parser = argparse.ArgumentParser(description="Time compiled texts beside those on ONNX Runtime, on one core.")
    parser.add_argument("--bundle", type=Path, default=BUNDLE_ROOT / "books")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args(arguments)
    document = run(given.bundle)
    print(json.dumps(document, indent=2))
    if given.out:
        write_result(given.out, document)


if __name__ == "__main__":
    main()
