"""Precompiled kernels of a bundle, which are launched with the driver instead of Triton's compiler.

Every launch of the process is intercepted here (`rfa.model.kernel_launches`). If a loaded kernel has the same source
and signature, `cuLaunchKernel` runs it on torch's current stream, which may be under capture for a CUDA graph. Triton
compiles the other kernels.

Machine code can access all GPU memory of the process, so only bundles that are signed with a trusted key may provide
it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from rfa.model.kernel_launches import KernelCall, intercept_launches, source_hash
from rfa.runtime.bundle.bundle import Bundle, StoredKernel
from rfa.runtime.gpu.driver import CudaDriver, CudaError
from rfa.runtime.outputs import GpuKernels

logger = logging.getLogger("rfa.engine")
LIBRARY = "libcuda.so.1"
UNTRUSTED = "machine code is loaded only from bundles that are signed with a key of RFA_TRUSTED_KEYS"


@dataclass
class KernelUse:
    """Records which kernels were launched.

    Attributes:
        stored: Names of kernels from bundles.
        compiled: Names of kernels that Triton compiled.
        reason: Reason why kernels of the bundle were not used. None if they were.
    """

    stored: set[str] = field(default_factory=set)
    compiled: set[str] = field(default_factory=set)
    reason: str | None = None

    def report(self) -> GpuKernels:
        """Return a description of the used kernels for /info."""
        return GpuKernels(tuple(sorted(self.stored)), tuple(sorted(self.compiled)), self.reason)


_USE: ContextVar[KernelUse | None] = ContextVar("use", default=None)


class StoredLaunches:
    """Holds the loaded kernels of this process, and launches them.

    Args:
        driver: Function that opens the GPU driver on the first load.
        capability: Function that returns the compute capability of the current device of torch.
        stream: Function that returns the handle of the current stream of torch on a device.
    """

    def __init__(
        self, driver: Callable[[], CudaDriver], capability: Callable[[], tuple[int, int]], stream: Callable[[int], int]
    ) -> None:
        self._open_driver, self._capability, self._stream = driver, capability, stream
        self._lock = threading.Lock()
        self._loaded_keys: set[tuple[int, bytes, str]] = set()
        # The keys are device and name. Tuples are replaced as a whole, because launches read them without a lock.
        self._loaded: dict[tuple[int, str], tuple[tuple[StoredKernel, ctypes.c_void_p], ...]] = {}

    @functools.cached_property
    def _driver(self) -> CudaDriver:
        return self._open_driver()

    def load(self, bundle: Bundle) -> str | None:
        """Load the kernels of a bundle for the current GPU of torch. Return the reason why some or all were not loaded.
        Return None if all were loaded."""
        if not bundle.kernels:
            return "the bundle does not contain kernels"
        capability, version = self._capability(), self._driver.version
        refusals = [kernel.refusal(capability, version) for kernel in bundle.kernels]
        suited = [kernel for kernel, reason in zip(bundle.kernels, refusals, strict=True) if reason is None]
        if not suited:
            return refusals[0]
        # Choose the latest of the supported architectures.
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
        # Two signatures may share the same code.
        device = self._driver.current_device()
        key = device, kernel.cubin, kernel.entry.model_dump_json()
        with self._lock:
            if key in self._loaded_keys:
                return
            name = device, kernel.entry.name
            self._loaded[name] = (*self._loaded.get(name, ()), (kernel, self._driver.load(kernel, device)))
            self._loaded_keys.add(key)

    def take(self, call: KernelCall) -> bool:
        """Launch the loaded kernel that matches a call. Return whether there is one. See
        `rfa.model.kernel_launches`."""
        use = _USE.get()
        device = device_of(call.values)
        for kernel, function in self._loaded.get((device, call.name), ()):
            if not kernel.fits(call.name, call.values, call.options):
                continue
            if kernel.entry.source != source_hash(call.function):
                if use is not None:
                    use.reason = f"{call.name} of the bundle was compiled by another version of rfa-server"
                continue
            arguments = kernel.arguments(call.values)
            self._driver.launch(function, kernel, device, call.grid, self._stream(device), arguments)
            if use is not None:
                use.stored.add(call.name)
            return True
        if use is not None:
            use.compiled.add(call.name)
        return False


def device_of(values: Mapping[str, Any]) -> int:
    """Return the index of the GPU on which the tensors of a launch are stored. Return 0 on a CPU."""
    return next((value.device.index or 0 for value in values.values() if isinstance(value, torch.Tensor)), 0)


@functools.cache
def _launches() -> StoredLaunches:
    """Return the stored launches of this process. The first call registers them."""
    found = StoredLaunches(
        lambda: CudaDriver(ctypes.CDLL(LIBRARY), torch.cuda.current_device),
        torch.cuda.get_device_capability,
        lambda device: int(torch.cuda.current_stream(device).cuda_stream),
    )
    intercept_launches(found.take)
    return found


@contextmanager
def kernels_of(bundle: Bundle, *, is_trusted: bool, launches: StoredLaunches | None = None) -> Iterator[KernelUse]:
    """Load the kernels of a bundle for the duration of a context. Yield the `KernelUse` that records which kernels this
    thread launches.

    Args:
        bundle: The bundle.
        is_trusted: Whether a trusted key has signed the bundle.
        launches: Launches to register with. By default, those of this process.
    """
    launches = launches or _launches()
    reason: str | None = UNTRUSTED
    if is_trusted or not bundle.kernels:
        reason = launches.load(bundle)
    use = KernelUse(reason=reason)
    token = _USE.set(use)
    try:
        yield use
    finally:
        _USE.reset(token)
