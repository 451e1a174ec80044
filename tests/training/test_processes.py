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


# Trains in a process, once for each (configuration, folder, steps) that follows the folder of the text.
WORKER = """
import sys
from pathlib import Path
from rfa.training.language import train_language
data = Path(sys.argv[1])
for config, out, steps in zip(*[iter(sys.argv[2:])] * 3, strict=True):
    train_language(config, data, Path(out), steps=int(steps), corpus_dir=data / "corpus", device="cpu")
"""


def run_two(data: Path, tmp_path: Path, *runs: tuple[str, Path, int]) -> None:
    """Train in two processes."""
    command = [sys.executable, "-c", WORKER, str(data), *(str(value) for run in runs for value in run)]
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
    """With whole weights, and with FSDP in a run that is continued, whose checkpoint has whole weights and moments."""
    plain, other = write_config(tmp_path, **RECIPE), tmp_path / "other"
    for steps in (3, 6):
        train_language(plain, data, tmp_path / "alone", steps=steps, corpus_dir=data / "corpus", device="cpu")
    other.mkdir()
    fsdp = write_config(other, **RECIPE, fsdp=True)
    run_two(data, tmp_path, (plain, tmp_path / "run", 6), (fsdp, other / "run", 3), (fsdp, other / "run", 6))
    assert_same(alone, tmp_path / "run")
    assert json.loads((tmp_path / "run/train.json").read_text())["tokens"] == 6 * 4 * 32
    assert_same(tmp_path / "alone", other / "run")
    moments = [load_file(folder / "optimiser.safetensors") for folder in (tmp_path / "alone", other / "run")]
    assert {name: value.shape for name, value in moments[0].items()} == {
        name: value.shape for name, value in moments[1].items()
    }
    with pytest.raises(ValueError, match="fsdp requires optimiser 'adam'"):
        train_language(write_config(tmp_path, fsdp=True, ema=0.9), data, tmp_path / "third", device="cpu")
