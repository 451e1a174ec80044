"""Two processes of torchrun, and a batch in parts, train the model that one process does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rfa.model.checkpoint import load_run
from rfa.training.language import train_language
from tests.training.language_runs import rows, write_config
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
RECIPE = {"steps": 6, "validate_every": 3}
ROUNDING = 1e-5


def assert_same(one: Path, other: Path) -> None:
    weights = [load_run(folder).state_dict() for folder in (one, other)]
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=0, atol=1e-3, msg=name)
    losses = [
        [row[kind][mode] for row in rows(folder) for kind in ("train", "valid") for mode in row[kind]]
        for folder in (one, other)
    ]
    assert len(losses[0]) == 8 and max(abs(a - b) for a, b in zip(*losses, strict=True)) < ROUNDING


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    train_language(write_config(folder, **RECIPE), data, folder / "run", corpus_dir=data / "corpus", device="cpu")
    return folder / "run"


def test_a_batch_in_parts_is_the_batch(data: Path, alone: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, **RECIPE, accumulation=2)
    train_language(config, data, tmp_path / "run", corpus_dir=data / "corpus", device="cpu")
    assert_same(alone, tmp_path / "run")
    with pytest.raises(ValueError, match="batch must be a multiple of accumulation"):
        train_language(write_config(tmp_path, accumulation=3), data, tmp_path / "other", device="cpu")


def run_two(data: Path, config: str, tmp_path: Path, *options: str) -> None:
    """Train in two processes."""
    command = [
        sys.executable, "-m", "rfa", "train", "lm", "--data", str(data), "--config", config,
        "--device", "cpu", "--out", str(tmp_path / "run"), *options,
    ]  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    # What torchrun sets.
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    environment = {**os.environ, **common, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(command, cwd=tmp_path, env={**environment, "RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    for process in started:
        _, errors = process.communicate(timeout=4 * PATIENCE)
        assert process.returncode == 0, errors[-2000:]


def test_two_processes_are_one(data: Path, alone: Path, tmp_path: Path) -> None:
    run_two(data, write_config(tmp_path, **RECIPE), tmp_path)
    assert_same(alone, tmp_path / "run")
    assert json.loads((tmp_path / "run/train.json").read_text())["tokens"] == 6 * 4 * 32


def test_two_processes_that_share_the_weights_are_one(data: Path, tmp_path: Path) -> None:
    """FSDP, also in a run that is continued; the checkpoint has whole weights and moments."""
    config = write_config(tmp_path, **RECIPE)
    for steps in (3, 6):
        train_language(config, data, tmp_path / "alone", steps=steps, corpus_dir=data / "corpus", device="cpu")
    config = write_config(tmp_path, **RECIPE, fsdp=True)
    run_two(data, config, tmp_path, "--steps", "3")
    run_two(data, config, tmp_path, "--steps", "6")
    assert_same(tmp_path / "alone", tmp_path / "run")
    moments = [load_file(tmp_path / name / "optimiser.safetensors") for name in ("alone", "run")]
    assert {name: value.shape for name, value in moments[0].items()} == {
        name: value.shape for name, value in moments[1].items()
    }
    with pytest.raises(ValueError, match="fsdp requires optimiser 'adam'"):
        train_language(write_config(tmp_path, fsdp=True, ema=0.9), data, tmp_path / "other", device="cpu")
