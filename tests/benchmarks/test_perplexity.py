"""The report of perplexities and its baselines."""

import json
import math
from typing import Any

import numpy as np
import pytest

from rfa.benchmarks.language.baselines import unigram
from rfa.benchmarks.language.perplexity import main
from rfa.benchmarks.results_page.language import language_tables
from tests.tiny_run import TEXT, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"))


def test_unigram_of_a_given_source():
    train = np.array([0] * 79 + [1] * 19)  # add-one: 80 % and 20 %
    nats, bits = unigram(train, np.array([0, 0, 0, 0, 1]), 2, 10)
    expected = -(4 * math.log(0.8) + math.log(0.2))
    assert nats == pytest.approx(expected / 5)
    assert bits == pytest.approx(expected / math.log(2) / 10)


def test_the_report_has_every_model_and_baseline(run, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        (tmp_path / "data" / f"{split}.txt").write_text(TEXT, encoding="utf-8")
    defaults: dict[str, dict[str, Any]] = {"evaluate_model": {"lengths": (16, 32)}, "evaluate_passes": {"length": 32}}
    for name, values in defaults.items():
        monkeypatch.setattr(f"rfa.benchmarks.language.perplexity.{name}.__kwdefaults__", {**values, "limit": None})
    (tmp_path / "two").mkdir()
    two = make_run(tmp_path / "two", inner=2)
    out = tmp_path / "results" / "language.json"
    arguments = [
        "language_eval",
        f"tiny={run}",
        f"two={two}",
        "--data",
        str(tmp_path / "data"),
        "--out",
        str(out),
        "--limit",
        "64",
    ]
    monkeypatch.setattr("sys.argv", arguments)
    main()
    document = json.loads(out.read_text())
    assert [(row["mode"], row["length"], row["tokens"]) for row in document["models"]["tiny"]["scores"]] == [
        ("attention", 16, 64), ("attention", 32, 64), ("recurrent", 16, 64), ("recurrent", 32, 64)
    ]  # fmt: skip
    assert document["models"]["tiny"]["passes"] == []
    compared = document["models"]["two"]["passes"]
    assert [(row["passes"], row["score"]["length"], row["score"]["tokens"]) for row in compared] == [
        (1, 32, 64), (2, 32, 64)
    ]  # fmt: skip
    assert compared[1]["score"] == document["models"]["two"]["scores"][3]
    _, table, _ = language_tables(document)
    rows = list(table.rows)
    assert [row[0] for row in rows] == ["`two`, 1", "`two`, 2"]
    assert rows[0][2:] == tuple(f"{compared[0][name]:.1f}" for name in ("prompt_us", "step_us"))
    assert set(document["baselines"]) == {"unigram", "gzip", "xz", "xz_after_train"}
    # The test text is the training text: what was read before costs next to nothing.
    assert document["baselines"]["xz_after_train"]["bits_per_byte"] < document["baselines"]["xz"]["bits_per_byte"] / 2
