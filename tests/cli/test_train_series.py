"""`rfa train series`: from nothing, and on from a run on one's own file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rfa.cli.main import app

MODEL = {
    "d_model": 32, "n_layers": 1, "n_heads": 2, "head_dim": 4, "n_slots": 2, "embedding_width": 32, "head_width": 32,
    "head_inner": 32,
}  # fmt: skip
TRAINING = {"steps": 2, "batch": 4, "tokens": 8, "workers": 0, "precision": "fp32", "validate_every": 2}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps({"model": MODEL, "training": TRAINING}))
    return path


def train(*arguments: object) -> dict[str, object]:
    result = CliRunner().invoke(app, ["train", "series", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return document


def test_from_nothing(tmp_path: Path, config: Path) -> None:
    assert train("--out", tmp_path / "first", "--config", config)["series"] == 8


@pytest.mark.slow
def test_on_from_a_run_with_ones_own_file(tmp_path: Path, config: Path) -> None:
    train("--out", tmp_path / "first", "--config", config)
    file = tmp_path / "rooms.csv"
    rows = [f"2026-01-{1 + i // 24:02}T{i % 24:02}:00:00Z,{i % 24},{np.sin(i):.3f}" for i in range(24 * 20)]
    file.write_text("\n".join(["time,a,b", *rows]) + "\n")
    train("--out", tmp_path / "own", "--config", config, "--from", tmp_path / "first", "--data", file)
    record = json.loads((tmp_path / "own" / "train.json").read_text())
    assert record["data"].keys() == {"rooms.csv"}
    assert record["validation"]["recurrent"]["own_near_loss"] > 0


def test_what_is_no_network_of_series_is_refused(tmp_path: Path, config: Path) -> None:
    arguments = ["train", "series", "--out", str(tmp_path / "out"), "--config", str(config), "--from", "linear"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1 and "not a series network" in result.stderr
