"""What the driver asks of those who load and launch: a context of the GPU on every thread, sizes that it takes.

The kernel is one in name: what is launched is noted, and not run."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch

pytest.importorskip("triton")

from tests.ptx.emulator import machine

if machine.missing() is not None:
    pytest.skip(str(machine.missing()), allow_module_level=True)

from rfa.model.kernel_launches import KernelCall
from rfa.runtime.bundle.stored_kernels import EM_CUDA, KernelEntry, Parameter, StoredKernel
from rfa.runtime.gpu import kernels as torch_kernels
from rfa.runtime.gpu.driver import CudaError
from tests.runtime.gpu.fake_cuda import STREAM, FakeGpu, compiled

T = TypeVar("T")
SOURCE = "0" * 64
ENTRY = KernelEntry(
    name="scale_kernel", file="scale_kernel-0.sm_80", architecture="sm_80", target="sm_80", source=SOURCE,
    parameters=[Parameter(name="p_x", type="*fp32")], options={}, scratch=0, warps=4, registers=8, stack_bytes=0,
    shared_bytes=0, triton="3.7.1", cuda="12.8",
)  # fmt: skip
# An ELF header that says where the file ends, and the name of a section.
HEADER = struct.Struct("<4s14xH20xQ10xHH2x")
NAME = b".text.scale_kernel\0"
KERNEL = StoredKernel(ENTRY, HEADER.pack(b"\x7fELF", EM_CUDA, HEADER.size + len(NAME), 64, 0) + NAME, "")
BUNDLE: Any = SimpleNamespace(name="small", kernels=(KERNEL,))
CALL = KernelCall(SimpleNamespace(fn=SimpleNamespace(__name__="scale_kernel")), (1, 1, 1), {"p_x": torch.empty(1)}, {})
ARGUMENTS = [ctypes.c_uint64(0)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def noted() -> list[tuple[int, int]]:
    """Of each launch its shared memory and its stream."""
    return []


@pytest.fixture
def gpu(library: ctypes.CDLL, noted: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.setattr(torch_kernels, "source_hash", lambda function: SOURCE)
    monkeypatch.setattr(FakeGpu, "_played", lambda self, kernel, sizes, *given: noted.append(given[:2]))
    return FakeGpu(library, [KERNEL])


def on_another_thread(act: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(act).result()


def test_threads_that_never_saw_cuda_load_and_launch(gpu: FakeGpu, noted: list[tuple[int, int]]) -> None:
    """Models are loaded on one thread and run on others; torch binds a context where it happens to call CUDA."""
    assert on_another_thread(lambda: gpu.launches.load(BUNDLE)) is None
    for _ in range(2):
        assert on_another_thread(lambda: [gpu.take(CALL) for _ in range(3)]) == [True] * 3
    assert noted == [(0, STREAM)] * 6
    # Of each thread the first call alone asks the driver, and the context is retained once.
    assert (gpu.library.fake_bound(), gpu.library.fake_retained(0)) == (3, 1)
    assert gpu.library.fake_current() == -1  # this thread has called nothing


def test_launches_go_to_the_gpu_of_their_tensors(
    gpu: FakeGpu, noted: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function is of the context that it was loaded in, and torch finds its own current device again."""
    assert gpu.launches.load(BUNDLE) is None
    monkeypatch.setattr(torch_kernels, "device_of", lambda values: 1)
    assert not gpu.take(CALL)  # nothing is loaded there
    gpu.device = 1
    assert gpu.launches.load(BUNDLE) is None
    gpu.device = 0

    def launch() -> list[int]:
        contexts = []
        for device in (1, 0, 1):
            monkeypatch.setattr(torch_kernels, "device_of", lambda values, device=device: device)
            assert gpu.take(CALL)
            contexts.append(gpu.library.fake_current())
        return contexts

    assert on_another_thread(launch) == [-1, 0, 0]
    assert [stream - STREAM for _, stream in noted] == [1, 0, 1]
    assert [gpu.library.fake_retained(device) for device in range(2)] == [1, 1]


def test_a_gpu_that_gives_no_context_is_named(gpu: FakeGpu) -> None:
    gpu.device = 2
    assert gpu.launches.load(BUNDLE) == "cuDeviceGet of GPU 2: invalid device ordinal"


def test_much_shared_memory_is_asked_for(gpu: FakeGpu, noted: list[tuple[int, int]]) -> None:
    """The driver takes no launch with more than 48 KiB that were not asked for when the kernel was loaded."""
    large = replace(KERNEL, entry=ENTRY.model_copy(update={"shared_bytes": 72704}))
    gpu.driver.launch(gpu.driver.load(large, 0), large, 0, (1, 1, 1), STREAM, ARGUMENTS)
    assert noted == [(72704, STREAM)]
    with pytest.raises(CudaError, match=r"cuLaunchKernel of .*: invalid argument"):
        gpu.driver.launch(gpu.driver.load(KERNEL, 0), large, 0, (1, 1, 1), STREAM, ARGUMENTS)


def test_a_grid_that_cuda_refuses_is_an_error(gpu: FakeGpu) -> None:
    with pytest.raises(CudaError, match="invalid argument"):
        gpu.driver.launch(gpu.driver.load(KERNEL, 0), KERNEL, 0, (1, 65536, 1), STREAM, ARGUMENTS)
