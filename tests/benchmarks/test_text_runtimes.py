"""The comparison of the runtimes, shortened: everything is measured, and the ratio is that of a round."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numba")
from rfa.benchmarks.language import runtimes as text_runtimes


def test_every_part_is_measured(books_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        text_runtimes, "LOAD", replace(text_runtimes.LOAD, streams=2, prompt_tokens=6, new_tokens=3, cases=2)
    )
    for name, value in (
        ("STREAMS", 2),
        ("BATCHES", (1, 3)),
        ("CALLS", 1),
        ("ENGINE_SECONDS", 0.5),
        ("ENGINE_WARMUP", 0.1),
    ):
        monkeypatch.setattr(text_runtimes, name, value)
    cores = os.sched_getaffinity(0)
    document = text_runtimes.run(books_bundle, rounds=1, engine_rounds=1)
    assert os.sched_getaffinity(0) == cores
    parts = {name: part for name, part in document.items() if isinstance(part, dict) and "ratio" in part}
    assert set(parts) == {"prompt, pieces of 64", "step of 1", "step of 3", "engine, 2 streams of 6 + 3"}
    assert all(value > 0 for part in parts.values() for value in part.values())


def test_the_ratio_is_the_median_of_those_of_the_rounds() -> None:
    found = text_runtimes.summary(6, {"onnx": [6.0, 2.0, 3.0], "compiled": [2.0, 1.0, 3.0]})
    assert found == {"onnx_tokens_per_second": 2.0, "compiled_tokens_per_second": 3.0, "ratio": 2.0}
