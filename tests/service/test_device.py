"""Which device a server computes on, and what it says where that one cannot be had."""

from __future__ import annotations

import importlib.metadata
import socket
import sys
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import torch

from rfa.cli.console import explain
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.errors import UnsupportedError
from rfa.runtime.gpu.kernels import StoredLaunches
from rfa.runtime.gpu.language import TorchLanguageRuntime
from rfa.runtime.outputs import GpuKernels
from rfa.service.app import create_app
from rfa.service.child_environment import child_environment
from rfa.service.engine import device
from rfa.service.engine.models import load_models
from rfa.service.machine import available_cores
from rfa.service.process.settings_json import read_settings, write_settings
from rfa.service.process.snapshot import Snapshot
from rfa.service.process.supervisor import Supervisor
from rfa.service.settings import ConfigurationError, Settings
from tests.service.conftest import Connect


def refusal(**given: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        load_models(Settings(**{"bundles": (), "device": "cuda", **given}))
    return str(error.value)


def test_without_torch_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    message = refusal()
    assert "requires torch" in message and "pip install -e '.[gpu,fast]'" in message and "RFA_DEVICE=cpu" in message


def test_torch_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without" in refusal()


def test_a_machine_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = refusal()
    assert (
        message.startswith("RFA_DEVICE=cuda requires an NVIDIA GPU") and "nvidia-smi" in message and "--gpus" in message
    )
    asked = refusal(device="cuda:1", processes=2)
    assert asked.startswith("RFA_DEVICE=cuda:1 with RFA_PROCESSES=2 requires an NVIDIA GPU"), "what was asked for"


def test_a_gpu_whose_memory_is_too_small_is_refused(books_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(books_bundle)
    runtime = TorchLanguageRuntime(bundle, device="cpu", streams=1, max_rows=1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2 << 30, 80 << 30))
    runtime._check_memory(bundle, streams=1, max_rows=8, longest=4096)
    with pytest.raises(UnsupportedError) as error:
        runtime._check_memory(bundle, streams=(2 << 30) // runtime.context_bytes, max_rows=8, longest=4096)
    message = str(error.value)
    assert "bundle 'books'" in message and "2,048 MiB are free" in message and "RFA_MAX_RUNNING" in message


def test_memory_that_is_gone_while_loading_is_a_refusal(books_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("rfa.runtime.gpu.language.DevicePool", full)
    with pytest.raises(UnsupportedError, match="ran out of memory while bundle 'books' was loaded"):
        TorchLanguageRuntime(open_bundle(books_bundle), device="cpu")


def test_a_gpu_has_one_process_unless_more_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(bundles=()).models.processes == available_cores()
    assert Settings(bundles=(), device="cuda").models.processes == 1
    assert Settings(bundles=(), device="cuda", processes=3).models.processes == 3
    monkeypatch.setenv("RFA_DEVICE", "cuda")
    assert Settings(bundles=()).models.processes == 1
    assert read_settings(write_settings(Settings(bundles=(), processes=2))).models.processes == 2


def test_each_process_has_a_gpu_of_its_own() -> None:
    one, second = (Settings(bundles=(), device=name, processes=2) for name in ("cuda", "cuda:1"))
    assert [one.models.gpu_of(k) for k in range(2)] == [0, 1] and [second.models.gpu_of(k) for k in range(2)] == [1, 2]
    assert (
        one.models.is_on_gpu and second.models.is_on_gpu and Settings(bundles=(), device="cuda:1").models.processes == 1
    )
    assert Settings(bundles=()).models.gpu_of(1) is None
    for name in ("cuda:", "cuda:x", "cuda:-1", "gpu", "mps", "CUDA", "cuda:100", "cuda:1\n"):
        with pytest.raises(ValueError, match="device") as error:
            Settings(bundles=(), device=name)
        said = (
            "device (RFA_DEVICE): must be auto, cpu, cuda or a numbered NVIDIA GPU such as cuda:1 (the first is cuda:0)"
        )
        assert explain(error.value) == said


@pytest.mark.parametrize(
    ("inherited", "gpu", "seen"),
    [
        ({}, 1, "1"),
        ({"CUDA_VISIBLE_DEVICES": "4, GPU-8ac"}, 1, "GPU-8ac"),
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, 0, "4"),
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, 2, "-1"),
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, None, "4,6"),
        ({}, None, None),
    ],
)
def test_a_process_sees_the_gpu_that_is_its_own(inherited: dict[str, str], gpu: int | None, seen: str | None) -> None:
    """torch numbers what it sees from 0 on: whatever a thread is told of devices, there is no other."""
    assert child_environment(inherited, gpu).get("CUDA_VISIBLE_DEVICES") == seen


@pytest.mark.anyio
async def test_the_supervisor_starts_each_process_with_its_gpu(tmp_path: Path) -> None:
    reported = "import os, sys; open(sys.argv[1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"
    settings = Settings(bundles=(), device="cuda:1", processes=2)
    with socket.socket() as listener:
        program = [sys.executable, "-c", reported, str(tmp_path / "seen")]
        supervisor = Supervisor(settings, listener, program, check=AsyncMock())
        child = await supervisor._start(1, 0, tmp_path, Snapshot(1, Path(), (), "", 0))
        await child.process.wait()
        child.close()
    assert (tmp_path / "seen").read_text() == "2"


@pytest.mark.anyio
async def test_info_names_the_device_that_is_used(connect: Connect) -> None:
    for name, expected in (("auto", "cpu"), ("cpu", "cpu"), ("cuda", "cuda")):
        async with connect(device=name) as client:
            reported = (await client.get("/info")).json()
        assert reported["device"] == expected
        assert reported["versions"].get("torch") == (importlib.metadata.version("torch") if name == "cuda" else None)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, marks=pytest.mark.slow),  # space for 1,024 streams
        {"max_running": 3, "max_batch_rows": 5},
    ],
)
def test_the_runtime_for_a_gpu_gets_the_limits_and_must_reproduce_the_golden_outputs(
    books_bundle: Path, linear_bundle: Path, monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    made: list[TorchLanguageRuntime] = []
    checked: list[Any] = []
    real = TorchLanguageRuntime

    def on_cpu(bundle: Any, *, device: str, **limits: Any) -> TorchLanguageRuntime:
        assert device == "cuda"
        made.append(real(bundle, device="cpu", **limits))
        return made[-1]

    monkeypatch.setattr(device, "check_gpu", lambda _: None)
    monkeypatch.setattr("rfa.runtime.gpu.language.TorchLanguageRuntime", on_cpu)
    monkeypatch.setattr("rfa.runtime.gpu.golden.check_golden_on", lambda runtime, _: checked.append(runtime))
    # Nobody has kernels.
    nothing = StoredLaunches(driver=pytest.fail, capability=pytest.fail, stream=lambda _: pytest.fail("a launch"))
    monkeypatch.setattr("rfa.runtime.gpu.kernels._launches", lambda: nothing)
    settings = Settings(bundles=(books_bundle, linear_bundle), device="cuda", **given)
    models = load_models(settings)
    assert list(models.languages.values()) == made == checked
    assert list(models.filters) == ["auto", "auto-joint", "linear"]
    assert made[0].pool.capacity == 16 * settings.limits.max_running
    assert made[0].batch_sizes.sizes[-1] == settings.models.max_batch_rows
    create_app(settings, load=lambda _: models)
    reported = {facts.name: facts.kernels for facts in models.facts}
    assert reported["books"] == GpuKernels((), (), "the bundle does not contain kernels") and reported["linear"] is None
