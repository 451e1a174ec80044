"""Kernels compiled before, in the place of Triton's compiler: a bundle's machine code, launched through the driver.

Every launch of this process is offered to them (`rfa.model.kernel_launches`): one that a loaded kernel of the same
source and signature fits goes to the GPU by `cuLaunchKernel` on torch's current stream, and so into a CUDA graph that
is being captured; no compiler is called. Any other goes to Triton.

Machine code may read and write all of the GPU's memory that the process has: it is taken only from bundles that one of
the trusted keys has signed.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from rfa.export.bundle import Bundle, StoredKernel
from rfa.model.kernel_launches import THREADS_OF_A_WARP, KernelCall, source_hash, take_launches
from rfa.service.schemas.replies import GpuKernels

logger = logging.getLogger("rfa.engine")
LIBRARY = "libcuda.so.1"
UNTRUSTED = "machine code is taken only from bundles that a key of RFA_TRUSTED_KEYS has signed"
# Shared memory that a CTA may have without being asked for.
COMMON_SHARED_BYTES = 48 << 10
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute


class CudaError(RuntimeError):
    """The driver refuses a call."""


class CudaDriver:
    """The few functions of the CUDA driver that load and launch a kernel; the context is the one that torch made.

    Args:
        library: libcuda, or what stands for it.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        address, word = ctypes.c_void_p, ctypes.c_uint
        library.cuDriverGetVersion.argtypes = (ctypes.POINTER(ctypes.c_int),)
        library.cuModuleLoadData.argtypes = (ctypes.POINTER(address), ctypes.c_char_p)
        library.cuModuleGetFunction.argtypes = (ctypes.POINTER(address), address, ctypes.c_char_p)
        library.cuFuncSetAttribute.argtypes = (address, ctypes.c_int, ctypes.c_int)
        library.cuLaunchKernel.argtypes = (address, *(word,) * 7, address, ctypes.POINTER(address), address)
        library.cuGetErrorString.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))

    @property
    def version(self) -> tuple[int, int]:
        """Of CUDA that it knows: (12, 8)."""
        number = ctypes.c_int()
        self._check(self._library.cuDriverGetVersion(ctypes.byref(number)), "cuDriverGetVersion")
        return number.value // 1000, number.value % 1000 // 10

    def load(self, kernel: StoredKernel) -> ctypes.c_void_p:
        """The kernel's function on the current GPU, for as long as the process lives.

        Raises:
            CudaError: the driver refuses it.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.cuModuleLoadData(ctypes.byref(module), kernel.cubin), "cuModuleLoadData")
        name = kernel.entry.name.encode()
        self._check(self._library.cuModuleGetFunction(ctypes.byref(function), module, name), "cuModuleGetFunction")
        if kernel.entry.shared_bytes > COMMON_SHARED_BYTES:
            self._check(
                self._library.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.entry.shared_bytes),
                "cuFuncSetAttribute",
            )
        return function

    def launch(
        self, function: ctypes.c_void_p, kernel: StoredKernel, grid: tuple[int, int, int], stream: int, arguments: Any
    ) -> None:
        """Launch it; `arguments` as of `StoredKernel.arguments`, which the driver copies.

        Raises:
            CudaError: the driver refuses it.
        """
        threads, shared = kernel.entry.warps * THREADS_OF_A_WARP, kernel.entry.shared_bytes
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        self._check(
            self._library.cuLaunchKernel(function, *grid, threads, 1, 1, shared, stream, places, None),
            f"cuLaunchKernel of {kernel.entry.name}",
        )

    def _check(self, code: int, what: str) -> None:
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise CudaError(f"{what}: {(text.value or b'').decode() or f'error {code}'}")


@dataclass
class KernelUse:
    """What launches came to: names of kernels that were taken from bundles and of those that Triton compiled, and why
    those of the bundle were not taken, or not all.
    """

    stored: set[str] = field(default_factory=set)
    compiled: set[str] = field(default_factory=set)
    reason: str | None = None

    def told(self) -> GpuKernels:
        """For /info."""
        return GpuKernels(tuple(sorted(self.stored)), tuple(sorted(self.compiled)), self.reason)


_USE: ContextVar[KernelUse | None] = ContextVar("use", default=None)


class StoredLaunches:
    """The kernels that this process has loaded, and the launches that they take.

    Args:
        driver: of the GPU, which is not asked for without kernels.
        capability: the GPU's.
        stream: the handle of the stream that torch launches on.
    """

    def __init__(
        self, driver: Callable[[], CudaDriver], capability: Callable[[], tuple[int, int]], stream: Callable[[], int]
    ) -> None:
        self._open_driver, self._capability, self._stream = driver, capability, stream
        self._lock = threading.Lock()
        self._loaded: dict[tuple[bytes, str], tuple[StoredKernel, ctypes.c_void_p]] = {}

    @functools.cached_property
    def _driver(self) -> CudaDriver:
        return self._open_driver()

    def load(self, bundle: Bundle) -> str | None:
        """Load a bundle's kernels for this GPU; returns why not, or not all of them."""
        if not bundle.kernels:
            return "the bundle has none"
        capability, version = self._capability(), self._driver.version
        refusals = [kernel.refusal(capability, version) for kernel in bundle.kernels]
        suited = [kernel for kernel, reason in zip(bundle.kernels, refusals, strict=True) if reason is None]
        if not suited:
            return refusals[0]
        # Those for the latest of the GPUs that this one can stand for.
        best = max(int(kernel.entry.architecture.removeprefix("sm_")) for kernel in suited)
        try:
            for kernel in suited:
                if kernel.entry.architecture == f"sm_{best}":
                    self._load(kernel)
        except CudaError as error:
            logger.warning("kernels of bundle %r cannot be loaded: %s", bundle.name, error)
            return str(error)
        return None

    def _load(self, kernel: StoredKernel) -> None:
        # Two signatures may have come to the same code.
        key = kernel.cubin, kernel.entry.model_dump_json()
        with self._lock:
            if key not in self._loaded:
                self._loaded = {**self._loaded, key: (kernel, self._driver.load(kernel))}

    def take(self, call: KernelCall) -> bool:
        """Launch what fits; see `rfa.model.kernel_launches`."""
        use = _USE.get()
        for kernel, function in self._loaded.values():
            if not kernel.fits(call.name, call.values, call.options):
                continue
            if kernel.entry.source != source_hash(call.function):
                if use is not None:
                    use.reason = f"{call.name} of the bundle is of another version of rfa-server"
                continue
            self._driver.launch(function, kernel, call.grid, self._stream(), kernel.arguments(call.values))
            if use is not None:
                use.stored.add(call.name)
            return True
        if use is not None:
            use.compiled.add(call.name)
        return False


@functools.cache
def _launches() -> StoredLaunches:
    """Of this process, which has one GPU; from the first call on they take its launches."""
    found = StoredLaunches(
        lambda: CudaDriver(ctypes.CDLL(LIBRARY)),
        torch.cuda.get_device_capability,
        lambda: int(torch.cuda.current_stream().cuda_stream),
    )
    take_launches(found.take)
    return found


@contextmanager
def kernels_of(bundle: Bundle, *, is_trusted: bool, launches: StoredLaunches | None = None) -> Iterator[KernelUse]:
    """Load a bundle's kernels; within it, see what becomes of the launches of this thread.

    Args:
        is_trusted: one of the trusted keys has signed the bundle.
        launches: default those of this process.
    """
    held = launches or _launches()
    reason: str | None = UNTRUSTED
    if is_trusted or not bundle.kernels:
        reason = held.load(bundle)
    use = KernelUse(reason=reason)
    token = _USE.set(use)
    try:
        yield use
    finally:
        _USE.reset(token)
