"""Two processes of torchrun, and a batch in parts, train the model that one process does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rfa.model.checkpoint import load_run
from rfa.training.language import train_language
from rfa.training.processes import Processes
from tests.training.language_runs import rows, write_config
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
RECIPE = {"steps": 4, "validate_every": 2}
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


@pytest.fixture(scope="module")
def continued(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("continued")
    for steps in (2, 4):
        train_language(
            write_config(folder, **RECIPE), data, folder / "run", steps=steps, corpus_dir=data / "corpus", device="cpu"
        )
    return folder / "run"


def assert_same_moments(one: Path, other: Path) -> None:
    """The checkpoint of shared weights has whole moments."""
    moments = [load_file(folder / "optimiser.safetensors") for folder in (one, other)]
    assert {name: value.shape for name, value in moments[0].items()} == {
        name: value.shape for name, value in moments[1].items()
    }


def test_a_batch_in_parts_is_the_batch(data: Path, alone: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, **RECIPE, accumulation=2)
    train_language(config, data, tmp_path / "run", corpus_dir=data / "corpus", device="cpu")
    assert_same(alone, tmp_path / "run")
    with pytest.raises(ValueError, match="batch must be a multiple of accumulation"):
        train_language(write_config(tmp_path, accumulation=3), data, tmp_path / "other", device="cpu")


# Trains in a process, once for each (configuration, folder, steps, port) that follows the folder of the text. Each has
# a port of its own, because a process might still meet the previous group at the same port.
WORKER = """
import os
import sys
from pathlib import Path
from rfa.training.language import train_language
data = Path(sys.argv[1])
for config, out, steps, port in zip(*[iter(sys.argv[2:])] * 4, strict=True):
    os.environ["MASTER_PORT"] = port
    train_language(config, data, Path(out), steps=int(steps), corpus_dir=data / "corpus", device="cpu")
"""


def test_gradients_of_two_processes_average_to_those_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = torch.nn.Linear(3, 1), torch.randn(6, 3)

    def gradients(rows: torch.Tensor) -> torch.Tensor:
        module.zero_grad()
        module(rows).square().mean().backward()
        return torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])

    expected = gradients(batch)
    both = [Processes(rank, 2) for rank in range(2)]
    total = gradients(both[1].rows(batch)) + gradients(both[0].rows(batch))
    monkeypatch.setattr("rfa.training.processes.dist.all_reduce", lambda joined: joined.copy_(total))
    both[0].average(module)
    found = torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])
    torch.testing.assert_close(found, expected)


def test_weights_that_are_shared_train_as_whole_ones(data: Path, continued: Path, tmp_path: Path) -> None:
    """FSDP of a single process, in a run that is continued; the checkpoint has whole weights and moments."""
    config = write_config(tmp_path, **RECIPE, fsdp=True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        for steps in (2, 4):
            train_language(config, data, tmp_path / "run", steps=steps, corpus_dir=data / "corpus", device="cpu")
    finally:
        torch.distributed.destroy_process_group()
    assert_same(continued, tmp_path / "run")
    assert_same_moments(continued, tmp_path / "run")
    with pytest.raises(ValueError, match="fsdp requires optimiser 'adam'"):
        train_language(write_config(tmp_path, fsdp=True, ema=0.9), data, tmp_path / "third", device="cpu")


def run_two(data: Path, tmp_path: Path, *runs: tuple[str, Path, int]) -> None:
    """Train in two processes."""
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in runs]
        ports = [one.getsockname()[1] for one in free]
    words = [str(word) for run, port in zip(runs, ports, strict=True) for word in (*run, port)]
    command = [sys.executable, "-c", WORKER, str(data), *words]
    # What torchrun sets.
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    environment = {**os.environ, **common, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(command, cwd=tmp_path, env={**environment, "RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    try:
        for process in started:
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, errors[-2000:]
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.slow  # starts two processes; the tests above have their gradients and shared weights in one
def test_two_processes_are_one(data: Path, alone: Path, continued: Path, tmp_path: Path) -> None:
    """With whole weights, and with FSDP in a run that is continued."""
    shared = tmp_path / "shared"
    shared.mkdir()
    plain, fsdp = write_config(tmp_path, **RECIPE), write_config(shared, **RECIPE, fsdp=True)
    run_two(data, tmp_path, (plain, tmp_path / "run", 4), (fsdp, shared / "run", 2), (fsdp, shared / "run", 4))
    assert_same(alone, tmp_path / "run")
    assert json.loads((tmp_path / "run/train.json").read_text())["tokens"] == 4 * 4 * 32
    assert_same(continued, shared / "run")
    assert_same_moments(continued, shared / "run")
