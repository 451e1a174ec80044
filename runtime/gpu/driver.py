"""Load and launch kernels with the CUDA driver, in torch's context.

The driver requires a current context on each thread. torch sets it on its first CUDA runtime call in a thread, which
may never happen if memory comes from torch's cache. This module therefore sets it itself, to the primary context of the
GPU, which torch uses too.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rfa.model.kernel_launches import THREADS_OF_A_WARP
from rfa.runtime.bundle.bundle import StoredKernel

# Maximum shared memory of a CTA that does not require an attribute, in bytes.
COMMON_SHARED_BYTES = 48 << 10
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
_CURRENT: AbstractContextManager[None] = nullcontext()


class CudaError(RuntimeError):
    """Raised if a call of the CUDA driver failed."""


class _Thread(threading.local):
    """Thread-local record of the devices whose context has been set on the current thread."""

    def __init__(self) -> None:
        self.devices: set[int] = set()


class CudaDriver:
    """Loads and launches kernels on the GPUs of this process, from any thread.

    Args:
        library: The CUDA driver library (libcuda), or a replacement for tests.
        current_device: Function that returns the current device of torch on the calling thread.
    """

    def __init__(self, library: ctypes.CDLL, current_device: Callable[[], int]) -> None:
        self._library, self.current_device = library, current_device
        self._lock = threading.Lock()
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._thread = _Thread()
        address, number, word = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint
        library.cuDriverGetVersion.argtypes = (ctypes.POINTER(number),)
        library.cuDeviceGet.argtypes = (ctypes.POINTER(number), number)
        library.cuDevicePrimaryCtxRetain.argtypes = (ctypes.POINTER(address), number)
        library.cuCtxSetCurrent.argtypes = (address,)
        # Names without a suffix are the functions of CUDA 3.
        library.cuCtxPushCurrent_v2.argtypes = (address,)
        library.cuCtxPopCurrent_v2.argtypes = (ctypes.POINTER(address),)
        library.cuModuleLoadData.argtypes = (ctypes.POINTER(address), ctypes.c_char_p)
        library.cuModuleGetFunction.argtypes = (ctypes.POINTER(address), address, ctypes.c_char_p)
        library.cuFuncSetAttribute.argtypes = (address, number, number)
        library.cuLaunchKernel.argtypes = (address, *(word,) * 7, address, ctypes.POINTER(address), address)
        library.cuGetErrorString.argtypes = (number, ctypes.POINTER(ctypes.c_char_p))

    @property
    def version(self) -> tuple[int, int]:
        """CUDA version that the driver supports, such as (12, 8)."""
        number = ctypes.c_int()
        self._check(self._library.cuDriverGetVersion(ctypes.byref(number)), "cuDriverGetVersion")
        return number.value // 1000, number.value % 1000 // 10

    def load(self, kernel: StoredKernel, device: int) -> ctypes.c_void_p:
        """Load a kernel on a GPU, and return its function, which is valid until the process exits.

        Args:
            kernel: Kernel to load.
            device: Device index of torch.

        Raises:
            CudaError: If a driver call fails.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        name, shared = kernel.entry.name.encode(), kernel.entry.shared_bytes
        with self._on(device):
            self._check(self._library.cuModuleLoadData(ctypes.byref(module), kernel.cubin), "cuModuleLoadData")
            self._check(self._library.cuModuleGetFunction(ctypes.byref(function), module, name), "cuModuleGetFunction")
            if shared > COMMON_SHARED_BYTES:
                code = self._library.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
                self._check(code, "cuFuncSetAttribute")
        return function

    def launch(
        self, function: ctypes.c_void_p, kernel: StoredKernel, device: int, grid: tuple[int, int, int], stream: int,
        arguments: Any,
    ) -> None:  # fmt: skip
        """Launch a kernel. The driver copies `arguments`.

        Args:
            function: Function that `load` returned.
            kernel: The loaded kernel.
            device: Device of the function and of the stream.
            grid: Number of blocks per dimension.
            stream: Handle of the stream.
            arguments: C arguments, created by `StoredKernel.arguments`.

        Raises:
            CudaError: If a driver call fails.
        """
        threads, shared = kernel.entry.warps * THREADS_OF_A_WARP, kernel.entry.shared_bytes
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        with self._on(device):
            code = self._library.cuLaunchKernel(function, *grid, threads, 1, 1, shared, stream, addresses, None)
        self._check(code, f"cuLaunchKernel of {kernel.entry.name}")

    def _on(self, device: int) -> AbstractContextManager[None]:
        """Return a context manager in which the context of a GPU is current on this thread.

        The context of torch's current device remains current, as after any CUDA runtime call. No work is submitted to a
        stream, so a graph may be under capture.
        """
        if device != self.current_device():
            return self._pushed(device)
        if device not in self._thread.devices:
            self._check(self._library.cuCtxSetCurrent(self._context(device)), f"cuCtxSetCurrent of GPU {device}")
            self._thread.devices.add(device)
        return _CURRENT

    @contextmanager
    def _pushed(self, device: int) -> Iterator[None]:
        """Make the context of another GPU than torch's current one current, and restore torch's context afterwards."""
        self._check(self._library.cuCtxPushCurrent_v2(self._context(device)), f"cuCtxPushCurrent of GPU {device}")
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def _context(self, device: int) -> ctypes.c_void_p:
        """Return the primary context of a GPU. It is retained once and never released, because the loaded modules
        depend on it."""
        with self._lock:
            if device not in self._contexts:
                handle, context = ctypes.c_int(), ctypes.c_void_p()
                self._check(self._library.cuDeviceGet(ctypes.byref(handle), device), f"cuDeviceGet of GPU {device}")
                code = self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
                self._check(code, f"cuDevicePrimaryCtxRetain of GPU {device}")
                self._contexts[device] = context
            return self._contexts[device]

    def _check(self, code: int, what: str) -> None:
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise CudaError(f"{what}: {(text.value or b'').decode() or f'error {code}'}")
