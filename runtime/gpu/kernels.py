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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from rfa.model.kernel_launches import KernelCall, source_hash, take_launches
from rfa.runtime.bundle.bundle import Bundle, StoredKernel
from rfa.runtime.gpu.driver import CudaDriver, CudaError
from rfa.runtime.outputs import GpuKernels

logger = logging.getLogger("rfa.engine")
LIBRARY = "libcuda.so.1"
UNTRUSTED = "machine code is taken only from bundles that a key of RFA_TRUSTED_KEYS has signed"


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
        capability: of torch's current device.
        stream: the handle of the stream that torch launches on, on a device.
    """

    def __init__(
        self, driver: Callable[[], CudaDriver], capability: Callable[[], tuple[int, int]], stream: Callable[[int], int]
    ) -> None:
        self._open_driver, self._capability, self._stream = driver, capability, stream
        self._lock = threading.Lock()
        self._known: set[tuple[int, bytes, str]] = set()
        # By device and name; a tuple is replaced whole, under those who launch.
        self._loaded: dict[tuple[int, str], tuple[tuple[StoredKernel, ctypes.c_void_p], ...]] = {}

    @functools.cached_property
    def _driver(self) -> CudaDriver:
        return self._open_driver()

    def load(self, bundle: Bundle) -> str | None:
        """Load a bundle's kernels for torch's current GPU; returns why not, or not all of them."""
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
        device = self._driver.current_device()
        key = device, kernel.cubin, kernel.entry.model_dump_json()
        with self._lock:
            if key in self._known:
                return
            place = device, kernel.entry.name
            self._loaded[place] = (*self._loaded.get(place, ()), (kernel, self._driver.load(kernel, device)))
            self._known.add(key)

    def take(self, call: KernelCall) -> bool:
        """Launch what fits; see `rfa.model.kernel_launches`."""
        use = _USE.get()
        device = device_of(call.values)
        for kernel, function in self._loaded.get((device, call.name), ()):
            if not kernel.fits(call.name, call.values, call.options):
                continue
            if kernel.entry.source != source_hash(call.function):
                if use is not None:
                    use.reason = f"{call.name} of the bundle is of another version of rfa-server"
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
    """The GPU that a launch's tensors are on, as torch counts them; 0 of what stands for one."""
    return next((value.device.index or 0 for value in values.values() if isinstance(value, torch.Tensor)), 0)


@functools.cache
def _launches() -> StoredLaunches:
    """Of this process; from the first call on they take its launches."""
    found = StoredLaunches(
        lambda: CudaDriver(ctypes.CDLL(LIBRARY), torch.cuda.current_device),
        torch.cuda.get_device_capability,
        lambda device: int(torch.cuda.current_stream(device).cuda_stream),
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
