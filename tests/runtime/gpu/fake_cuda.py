"""A CUDA driver without a GPU: launches come through C, as the real one gets them, and the emulator plays them."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rfa.model.kernel_launches import KernelCall
from rfa.runtime.bundle.bundle import StoredKernel
from rfa.runtime.gpu.driver import CudaDriver
from rfa.runtime.gpu.kernels import StoredLaunches
from tests.ptx.emulator import machine

SOURCE = Path(__file__).with_suffix(".cpp")
STREAM = 0x5EED
_PLAYED = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_uint,
    ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip
# Of a parameter, by what PTX calls it.
SIZES: dict[str, Any] = {"u64": ctypes.c_uint64, "u32": ctypes.c_int32, "f32": ctypes.c_float}


def compiled(folder: Path) -> ctypes.CDLL:
    out = folder / "libfake_cuda.so"
    subprocess.run([machine.COMPILER, "-std=c++20", "-shared", "-fPIC", str(SOURCE), "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


@dataclass
class FakeGpu:
    """What its driver was asked to launch.

    device: torch's current one; is_emulated: whether kernels compute their results, or are only launched; launched:
    names with grid and block; failures: of the checks here, which cannot be raised through C.
    """

    library: ctypes.CDLL
    kernels: Sequence[StoredKernel]
    version: int = 12080
    capability: tuple[int, int] = (8, 0)
    device: int = 0
    is_emulated: bool = True
    launched: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    _tensors: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._callback = _PLAYED(self._play)
        self.library.fake_set(self._callback, self.version)
        self.driver = CudaDriver(self.library, lambda: self.device)
        self.launches = StoredLaunches(lambda: self.driver, lambda: self.capability, lambda device: STREAM + device)

    def take(self, call: KernelCall) -> bool:
        """In front of the launches: the tensors that addresses are of."""
        self._tensors = {value.data_ptr(): value for value in call.values.values() if isinstance(value, Tensor)}
        is_taken = self.launches.take(call)
        assert not self.failures, self.failures
        return is_taken

    def _play(self, image: int, size: int, name: bytes, sizes: Any, shared: int, stream: int, parameters: Any) -> int:
        try:
            code = ctypes.string_at(image, size)
            # Of those of one code, any: they differ in what they are launched for.
            kernel = next(kernel for kernel in self.kernels if kernel.cubin[:size] == code)
            assert kernel.entry.name == name.decode()
            self._played(kernel, sizes[:6], shared, stream, parameters)
        except BaseException as error:
            self.failures.append(error)
            return 1
        return 0

    def _played(self, kernel: StoredKernel, sizes: list[int], shared: int, stream: int, parameters: Any) -> None:
        assert stream == STREAM + self.library.fake_current()
        assert shared == kernel.entry.shared_bytes
        assert sizes[3:] == [32 * kernel.entry.warps, 1, 1]
        if self.is_emulated:
            self._emulate(kernel, sizes, shared, parameters)
        self.launched.append((kernel.entry.name, tuple(sizes[:4])))

    def _emulate(self, kernel: StoredKernel, sizes: list[int], shared: int, parameters: Any) -> None:
        header = kernel.ptx[kernel.ptx.index(".entry") :].partition(")")[0]
        kinds = re.findall(r"\.param \.(\w+)", header)
        values = [SIZES[kind].from_address(parameters[i]).value for i, kind in enumerate(kinds)]
        arguments = [
            self._tensors[value] if kind == "u64" and value else value
            for kind, value in zip(kinds, values, strict=True)
        ]
        machine.run(machine.load(kernel.ptx), sizes[:3], arguments, shared_bytes=shared)
