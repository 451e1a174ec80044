"""`rfa bench events` and `blimp`: what is counted, on sessions and pairs whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.benchmarks.language import blimp
from rfa.benchmarks.language.events import DEEPLOG_TEST, _row, write_corpus


def test_rates_of_sessions_and_events_are_counted() -> None:
    normal = [np.array([0.5, 0.02]), np.array([0.5, 0.5]), np.array([0.005, 0.004])]
    abnormal = [np.array([0.001]), np.array([0.9, 0.9])]
    row = _row(0.01, normal, abnormal)
    assert (row["normal_flagged"], row["abnormal_flagged"], row["alarms"]) == (1, 1, 2)
    assert row["alarms_over_expected"] == pytest.approx(2 / (0.01 * 6))
    assert row["recall"] == 0.5 and row["f1"] == pytest.approx(2 / (2 + 1 + 1))
    usual, rare = DEEPLOG_TEST
    precision = 0.5 * rare / (0.5 * rare + usual / 3)
    assert row["f1_deeplog"] == pytest.approx(2 * precision * 0.5 / (precision + 0.5))


def test_the_corpus_leaves_out_what_is_tested(tmp_path: Path) -> None:
    (tmp_path / "normal.txt").write_text("".join(f"5 {index}\n" for index in range(1008)))
    write_corpus(tmp_path, tmp_path / "corpus")
    parts = {name: (tmp_path / "corpus" / f"{name}.txt").read_text().split("\n")[:-1] for name in ("train", "valid")}
    assert parts == {"train": ["5 0", "5 1", "5 2", "5 4", "5 5", "5 6"], "valid": ["5 3", "5 7"]}


def test_the_more_probable_sentence_counts(tmp_path: Path, books_bundle: Path, monkeypatch: Any) -> None:
    (tmp_path / "data").mkdir()
    pairs = [{"sentence_good": good, "sentence_bad": "x", "linguistics_term": "a"} for good in ("xx", "", "xxx")]
    (tmp_path / "data/one.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    monkeypatch.setattr(blimp, "load_on_cpu", lambda *_: None)
    monkeypatch.setattr(blimp, "log_likelihood", lambda _, sentence: float(len(sentence)))
    found = blimp.run_blimp(tmp_path, books_bundle, 3)
    assert (found["pairs"], found["accuracy"], found["published"]) == (3, pytest.approx(2 / 3), {})
    (tmp_path / "raw_results/summary").mkdir(parents=True)
    (tmp_path / blimp.SUMMARY).write_text('{"ngram": 0.4, "lstm": 0.5, "txl": 0.6, "gpt2": 0.7}\n')
    assert blimp.run_blimp(tmp_path, books_bundle, 2)["published"]["LSTM"] == 0.5
    with pytest.raises(FileNotFoundError, match="no checkout of BLiMP"):
        blimp.run_blimp(tmp_path / "raw_results", books_bundle, 1)
