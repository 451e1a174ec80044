"""Kernels of a bundle, launched through the driver of a GPU that is not there: no number differs from those that Triton
compiles, and what does not fit goes to Triton."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from rfa.export.bundle import Bundle
from rfa.export.ptx import machine

if machine.missing() is not None:
    pytest.skip(str(machine.missing()), allow_module_level=True)

from rfa.export.kernel_model import KernelModel
from rfa.export.loading import model_of
from rfa.export.signing import write_keys
from rfa.model import decoder
from rfa.model.kernel_launches import launches_taken
from rfa.model.recurrence import slots
from rfa.service.encoding import dumps
from rfa.service.engine.models import _facts
from rfa.service.runtime import device, torch_golden, torch_kernels, torch_language
from rfa.service.runtime.torch_golden import check_golden_on
from rfa.service.runtime.torch_kernels import CudaDriver, CudaError, kernels_of
from rfa.service.runtime.torch_language import TorchLanguageRuntime
from rfa.service.settings import Settings
from tests.ptx.launches import Compiler, Emulator, emulated
from tests.service.fake_cuda import STREAM, FakeGpu, compiled
from tests.small_kernels import ARCHITECTURE, with_kernels

BOTH = ("scan_kernel", "step_kernel")


@pytest.fixture(scope="module")
def bundle(of_all_workers: Path) -> Bundle:
    return with_kernels(of_all_workers)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def gpu(library: ctypes.CDLL, bundle: Bundle) -> FakeGpu:
    return FakeGpu(library, bundle.kernels)


@pytest.fixture(autouse=True)
def slots_are_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU take the way of those of a GPU."""
    for module in (decoder, slots):
        monkeypatch.setattr(module, "is_on_gpu", lambda _: True)


def runtime_of(bundle: Bundle) -> TorchLanguageRuntime:
    return TorchLanguageRuntime(bundle, device="cpu", streams=4, max_rows=3)


def answers(runtime: TorchLanguageRuntime) -> list[np.ndarray]:
    """Of two streams, through a prompt and steps of both."""
    contexts: list[Any] = [runtime.start("recurrent") for _ in range(2)]
    found: list[np.ndarray] = []
    for i, context in enumerate(contexts):
        output, advance = runtime.read_prompt(context, list(range(5 + i)))
        advance.commit()
        found += output
    for token in (7, 8):
        output, advances = runtime.step(contexts, [token, token + 3], np.zeros((2, *runtime.latent_shape), np.float32))
        for after in advances:
            after.commit()
        found += output
    for context in contexts:
        context.release()
    return found


def test_all_that_serving_launches_is_taken_and_gives_the_golden_outputs(bundle: Bundle, gpu: FakeGpu) -> None:
    with launches_taken(gpu.take), kernels_of(bundle, is_trusted=True, launches=gpu.launches) as use:
        runtime = runtime_of(bundle)
        assert check_golden_on(runtime, bundle) > 0
    assert use.told() == torch_kernels.GpuKernels(BOTH, (), None)
    heads, layers = runtime.latent_shape[0], len(runtime.initial["means"])
    # One program a head of a stream.
    assert {grid for name, grid in gpu.launched if name == "scan_kernel"} == {(heads, 1, 1, 32)}
    assert len([name for name, _ in gpu.launched if name == "scan_kernel"]) % layers == 0


def test_numbers_are_those_of_what_triton_compiles_for_each_launch(bundle: Bundle, gpu: FakeGpu) -> None:
    compiler = Compiler()
    try:
        with emulated(Emulator(compiler, ARCHITECTURE)):
            wanted = answers(runtime_of(bundle))
    finally:
        compiler.close()
    with launches_taken(gpu.take), kernels_of(bundle, is_trusted=True, launches=gpu.launches) as use:
        found = answers(runtime_of(bundle))
    assert use.stored == set(BOTH) and not use.compiled
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)


def test_a_kernel_is_loaded_once(bundle: Bundle, gpu: FakeGpu, library: ctypes.CDLL) -> None:
    for _ in range(2):
        with kernels_of(bundle, is_trusted=True, launches=gpu.launches) as use:
            assert use.reason is None
    assert library.fake_loaded() == len(bundle.kernels)


def told(bundle: Bundle, gpu: FakeGpu, *, is_trusted: bool = True) -> torch_kernels.GpuKernels:
    """What a prompt and a step come to; what goes to Triton is played by its interpreter."""
    model = KernelModel(model_of(bundle), ARCHITECTURE)
    state = model.model.init_state(1)
    with (
        torch.no_grad(),
        launches_taken(gpu.take),
        kernels_of(bundle, is_trusted=is_trusted, launches=gpu.launches) as use,
    ):
        _, *after = model.prefill(torch.tensor([[1, 2]]), state.position, state.means, state.precisions)
        model.step(torch.tensor([3]), state.position, torch.zeros(1, *bundle_latent(bundle)), *after)
    assert {name for name, _ in gpu.launched} == use.stored
    return use.told()


def bundle_latent(bundle: Bundle) -> tuple[int, int]:
    return bundle.language.n_heads, 2 * bundle.language.head_dim


def test_only_signed_code_runs(bundle: Bundle, gpu: FakeGpu) -> None:
    assert told(bundle, gpu, is_trusted=False) == torch_kernels.GpuKernels((), BOTH, torch_kernels.UNTRUSTED)
    assert not gpu.launched


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"capability": (9, 0)}, "it is for sm_80, the GPU is sm_90"),
        ({"version": 11080}, "the driver is of CUDA 11.8"),
    ],
)
def test_what_does_not_fit_the_gpu_is_compiled(
    bundle: Bundle, library: ctypes.CDLL, given: dict[str, Any], reason: str
) -> None:
    found = told(bundle, FakeGpu(library, bundle.kernels, **given))
    assert (found.stored, found.compiled) == ((), BOTH)
    assert found.reason is not None and reason in found.reason


def test_what_the_driver_refuses_is_compiled(bundle: Bundle, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [replace(kernel, cubin=kernel.cubin.replace(b".text.", b".tixt.")) for kernel in bundle.kernels]
    monkeypatch.setattr(bundle, "_kernels", tuple(broken))
    found = told(bundle, gpu)
    assert found.compiled == BOTH and found.reason == "cuModuleGetFunction: named symbol not found"


def test_kernels_of_another_source_are_not_taken(bundle: Bundle, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    scan, step = sorted(bundle.kernels, key=lambda kernel: kernel.entry.name)
    other = replace(step, entry=step.entry.model_copy(update={"source": "0" * 64}))
    monkeypatch.setattr(bundle, "_kernels", (scan, other))
    found = told(bundle, gpu)
    assert (found.stored, found.compiled) == (("scan_kernel",), ("step_kernel",))
    assert found.reason == "step_kernel of the bundle is of another version of rfa-server"


def test_much_shared_memory_is_asked_for(bundle: Bundle, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver takes no launch with more than 48 KiB that were not asked for when the kernel was loaded."""
    kernel = bundle.kernels[0]
    large = replace(kernel, entry=kernel.entry.model_copy(update={"shared_bytes": 72704}))
    driver = CudaDriver(gpu.library)
    noted: list[int] = []
    monkeypatch.setattr(gpu, "_played", lambda name, sizes, shared, *_: noted.append(shared))
    packed = [ctypes.c_uint64(0)]
    driver.launch(driver.load(large), large, (1, 1, 1), STREAM, packed)
    assert noted == [72704]
    with pytest.raises(CudaError, match=r"cuLaunchKernel of .*: invalid argument"):
        driver.launch(driver.load(kernel), large, (1, 1, 1), STREAM, packed)


def test_a_grid_that_cuda_refuses_is_an_error(bundle: Bundle, gpu: FakeGpu) -> None:
    driver = CudaDriver(gpu.library)
    kernel = bundle.kernels[0]
    with pytest.raises(CudaError, match="invalid argument"):
        driver.launch(driver.load(kernel), kernel, (1, 65536, 1), STREAM, [ctypes.c_uint64(0)])


def test_info_says_which_kernels_run(
    bundle: Bundle, gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server loads a bundle, but for the device: without keys nobody has signed it, whom one could trust."""
    monkeypatch.setattr(device, "check_gpu", lambda: None)
    monkeypatch.setattr(torch_kernels, "_launches", lambda: gpu.launches)
    monkeypatch.setattr(torch_language, "TorchLanguageRuntime", lambda bundle, **_: runtime_of(bundle))
    monkeypatch.setattr(torch_golden, "check_golden_on", lambda runtime, bundle: 0)
    keys = write_keys(tmp_path / "author").pub
    with launches_taken(gpu.take):
        signed = device.language_loader(Settings(bundles=(), device="cuda", trusted_keys_file=keys))(bundle).kernels
    assert signed == torch_kernels.GpuKernels(BOTH, (), None)
    info = json.loads(dumps(_facts(bundle, 0, "torch", ("recurrent",), signed)))
    assert info["kernels"] == {"stored": list(BOTH), "compiled": [], "reason": None}
    monkeypatch.setattr(torch_language, "TorchLanguageRuntime", lambda bundle, **_: SimpleNamespace(kernels=None))
    found = device.language_loader(Settings(bundles=(), device="cuda"))(bundle).kernels
    assert found == torch_kernels.GpuKernels((), (), torch_kernels.UNTRUSTED)
