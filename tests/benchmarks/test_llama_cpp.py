"""The comparison with llama.cpp: models of equal size, what is decoded in which batch, and the ratios."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rfa.benchmarks.language.llama_cpp import compare
from rfa.benchmarks.language.llama_cpp.rival import PIECE, Rival, Shape, weights
from rfa.runtime.bundle.bundle import open_bundle

VOCABULARY = 11


def test_both_models_have_the_same_size(books_bundle: Path) -> None:
    bundle = open_bundle(books_bundle)
    shape = compare.equal_shape(bundle, 4_396_000)
    assert (shape.vocabulary, shape.width, shape.layers, shape.heads) == (4096, 256, 4, 4)
    size = sum(array.size for _, array in weights(shape))
    # The size of a feed-forward layer is a multiple of the block.
    assert abs(size - 4_396_000) <= 3 * shape.width * shape.layers * compare.BLOCK / 2


class FakeLlama:
    """llama.cpp whose next token is the sum of the tokens of a sequence, modulo the vocabulary."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.sequences: dict[int, list[int]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: SimpleNamespace()

    def llama_batch_init(self, size: int, _embd: int, _sequences: int) -> Any:
        ids = [[0] for _ in range(size)]
        names = ("token", "pos", "logits", "n_seq_id")
        return SimpleNamespace(**{name: [0] * size for name in names}, seq_id=ids, n_tokens=0)

    def llama_memory_clear(self, _memory: Any, _data: bool) -> None:
        self.sequences.clear()

    def llama_decode(self, _context: Any, batch: Any) -> int:
        rows = []
        for index in range(batch.n_tokens):
            own = self.sequences[batch.seq_id[index][0]]
            assert batch.pos[index] == len(own) and batch.n_seq_id[index] == 1
            own.append(batch.token[index])
            if batch.logits[index]:
                rows.append(np.eye(VOCABULARY, dtype=np.float32)[sum(own) % VOCABULARY])
        self.calls.append(batch.n_tokens)
        self.logits = np.ascontiguousarray(rows, np.float32)
        return 0

    def llama_get_logits(self, _context: Any) -> Any:
        return self.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def continuation(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(tokens) % VOCABULARY)
    return tokens[len(prompt) :]


def test_all_requests_are_decoded_in_the_same_batches() -> None:
    api = FakeLlama()
    shape = Shape(vocabulary=VOCABULARY, width=8, layers=1, heads=1, hidden=8, context=200, streams=6)
    rival = Rival(api, Path("model.gguf"), shape)
    prompts = [[(7 * index + number) % VOCABULARY for index in range(120)] for number in range(6)]
    expected = [continuation(prompt, 5) for prompt in prompts]
    for _ in range(2):  # the first requests leave nothing behind
        assert rival.generate(prompts, 5) == expected
    assert api.calls == [PIECE, 6 * 120 - PIECE, 6, 6, 6, 6] * 2


def test_ratios_compare_measurements_of_the_same_round() -> None:
    def of(*seconds: float) -> list[compare.Sample]:
        return [compare.Sample(64, 4 * one, one) for one in seconds]

    samples = {
        ("rfa-server, in process", 1): of(1, 2, 4),
        ("rfa-server, HTTP", 1): of(2, 4, 8),
        ("llama.cpp, F32", 1): of(3, 6, 8),
    }
    rates = {row["system"]: row for row in compare.rows_of(samples)}
    assert rates["llama.cpp, F32"]["tokens_per_cpu_second"] == 64 / 6
    assert rates["llama.cpp, F32"]["tokens_per_second"] == 64 / 24
    assert not rates["llama.cpp, F32"].keys() & {"us_per_prompt_token", "us_per_new_token"}
    (ratio,) = compare.ratios_of(samples)
    assert ratio == {"system": "llama.cpp, F32", "requests": 1, "in_process": 3, "http": 1.5}


def test_prompts_and_new_tokens_are_timed_separately() -> None:
    sample = compare.Sample(2 * compare.NEW_TOKENS, 1.0, 1.536 + 0.63, prompt_cpu_seconds=1.536)
    (row,) = compare.rows_of({("any", 2): [sample]})
    assert row["us_per_prompt_token"] == pytest.approx(6000) and row["us_per_new_token"] == pytest.approx(5000)
