"""Measure the cost of scoring the tokens of a prompt, relative to reading the prompt, on one CPU thread.

    prefill       update the memory slots; nothing is returned
    logits        update the memory slots, and compute the logits after every token
    vocabulary    the matrix product of `logits` alone, with the matrix of the vocabulary
    scores        log probability, confidence, rank, entropy and tail of every token, from the logits

The parts alternate in one process, on the same tokens in each round. A ratio is the processor time of a part
divided by the processor time of `prefill`, as the median over the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from rfa.measured import origin, write_result
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.text.compiled_language import CompiledLanguageRuntime
from rfa.runtime.text.contexts import Context
from rfa.runtime.text.product_numba import Matrix
from rfa.runtime.text.scores import score_tokens

# The server reads prompts in pieces of this many tokens.
TOKENS: Final = CompiledLanguageRuntime.prefill_tokens
ROUNDS: Final = 300
WARM_UP: Final = 10


def seconds_of(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    started = time.process_time_ns()
    call()
    return (time.process_time_ns() - started) / 1e9


def measure_round(runtime: CompiledLanguageRuntime, vocabulary: Matrix, tokens: list[int]) -> dict[str, float]:
    """Return the seconds of each part for some tokens; the last token is only scored."""
    piece, following = tokens[:-1], tokens[1:]
    temperature = runtime.confidence("recurrent").temperature
    rows = np.ones((len(piece), vocabulary.panels.shape[1]), np.float32)
    logits = np.empty((0, 0), np.float32)

    def read(context: Context) -> None:
        runtime.prefill([context], [piece])[0].commit()

    def read_logits(context: Context) -> None:
        nonlocal logits
        logits, _ = runtime.logits_of(context, piece)

    seconds = {}
    for name, part in (("prefill", read), ("logits", read_logits)):
        context = runtime.start("recurrent", capacity=len(tokens))
        seconds[name] = seconds_of(lambda part=part, context=context: part(context))  # type: ignore[misc]
        context.release()
    seconds["vocabulary"] = seconds_of(lambda: vocabulary.times(rows))
    seconds["scores"] = seconds_of(lambda: score_tokens(logits, following, temperature, 0))
    return seconds


def run_scoring(bundle_path: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure a language bundle, and return the document that `write_scoring` stores."""
    bundle = open_bundle(bundle_path)
    runtime = CompiledLanguageRuntime(bundle, streams=1)
    vocabulary = Matrix.of(bundle.weights()["embedding.weight"].T)
    generator = np.random.default_rng(0)
    found = []
    for _ in tqdm(range(rounds + WARM_UP), desc="rounds"):
        tokens = generator.integers(0, bundle.config["vocab_size"], TOKENS + 1).tolist()
        found.append(measure_round(runtime, vocabulary, tokens))
    seconds = {name: np.array([one[name] for one in found[WARM_UP:]]) for name in found[0]}
    seconds["logits and scores"] = seconds["logits"] + seconds["scores"]
    return {
        "bundle": bundle.name,
        "digest": bundle.digest,
        **origin("rfa bench scoring"),
        "tokens": TOKENS,
        "rounds": rounds,
        "parts": {
            name: {
                "us_per_token": round(1e6 * float(np.median(times)) / TOKENS, 1),
                "over_prefill": round(float(np.median(times / seconds["prefill"])), 3),
            }
            for name, times in seconds.items()
        },
    }


def write_scoring(bundle_path: Path, out: Path) -> dict[str, Any]:
    """Write the document of `run_scoring` to a JSON file."""
    document = run_scoring(bundle_path)
    write_result(out, document)
    return document
