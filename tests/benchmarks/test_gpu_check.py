"""The first minutes on a GPU: what is wrong is told and costs the other parts nothing, and time runs out in words."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rfa.benchmarks.gpu import check as gpu_check
from rfa.benchmarks.gpu.check import CHECKS, LONGEST, PARTS, Part, problems, run_gpu_check, together
from rfa.benchmarks.gpu.paired import Bar
from rfa.benchmarks.kernels.truth import WrongResultError
from rfa.benchmarks.results_page.page import tables_of
from rfa.cli.main import app

ROW = {"measure": "slots", "implementation": "fused", "p50_ms": 2.0, "errors": {"out": 1e-6}}


@pytest.fixture
def somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of which nothing is asked."""
    monkeypatch.setattr(gpu_check, "require_gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(gpu_check, "gpu_hardware", lambda device: {"device": "a GPU"})


def raising(error: Exception) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        raise error

    return run


@pytest.mark.parametrize(
    ("built_for", "reported"), [(None, "needs torch with CUDA, but torch"), ("13.0", "needs an NVIDIA GPU, but torch")]
)
def test_without_a_gpu_it_says_in_one_line_what_is_missing(
    built_for: str | None, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "check.json"
    result = CliRunner().invoke(app, ["gpu-check", "--out", str(out)], prog_name="rfa")
    assert result.exit_code == 2 and reported in result.stderr and result.stderr.count("\n") == 1
    assert not out.exists()


@pytest.mark.usefixtures("somewhere")
def test_what_is_wrong_or_fails_is_reported_and_the_rest_is_run(tmp_path: Path) -> None:
    bars = [Bar("ours / theirs", 1.25, 1.5)]
    parts = [
        Part("first", 1, raising(WrongResultError("fused: out has relative error 2"))),
        Part("second", 1, raising(RuntimeError("out of luck\nand more"))),
        Part("third", 1, lambda: together([([ROW], bars)])),
    ]
    out = tmp_path / "check.json"
    document = run_gpu_check(out, checks=(), parts=parts)
    assert json.loads(out.read_text()) == document and document["hardware"]["device"] == "a GPU"
    assert [part["status"] for part in document["parts"].values()] == ["wrong", "failed", "done"]
    assert document["parts"]["third"]["rows"] == [ROW]
    assert problems(document) == (
        "first: wrong, fused: out has relative error 2; second: failed, RuntimeError: out of luck"
    )
    assert "| ours / theirs | 1.5 | at most 1.25 | **missed** |" in tables_of("gpu-check", document)


@pytest.mark.usefixtures("somewhere")
def test_what_was_not_right_is_not_timed(tmp_path: Path) -> None:
    parts = [
        Part("first", 1, raising(WrongResultError("off by two"))), Part("second", 1, dict),
        *(Part(f"timed {name}", 1, dict, needs=name) for name in ("first", "second", "third")),
    ]  # fmt: skip
    document = run_gpu_check(tmp_path / "check.json", checks=(), parts=parts)
    timed = {name: part for name, part in document["parts"].items() if name.startswith("timed")}
    assert [part["status"] for part in timed.values()] == ["left out", "done", "left out"]
    assert timed["timed first"]["reason"] == "not done: first"


def test_everything_fits_in_the_time_and_what_is_timed_was_checked() -> None:
    assert max(check.seconds for check in CHECKS) + sum(part.seconds for part in PARTS) <= LONGEST / 2
    pickle.dumps(CHECKS)
    assert {part.needs for part in PARTS} - {None} <= {check.name for check in CHECKS}
    assert [check.name for check in CHECKS] == [
        "attention is right, 64 reals", "attention is right, 128 reals", "slots are right", "decoding is right",
        "prompts are right",
    ]  # fmt: skip
