"""Compile functions with numba, and cache kernels on disk under a digest of their source files.

numba invalidates its cache only if the file of the kernel changes, but a kernel also calls functions in other files.
Inlined functions are therefore not cached, and the name of a cached function contains a digest of all its source files.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import numba
import numba.core.event
from numba.core.compiler_lock import global_compiler_lock

Function = TypeVar("Function", bound=Callable[..., Any])
# A function that compiles kernels, and the module whose file is locked while it runs. If the module is None, no lock is
# used.
CompileTask = tuple[ModuleType | None, Callable[[], None]]
# Flags that assume finite numbers are not set, because missing values are NaN.
FASTMATH: Final = frozenset({"contract", "nsz"})
_ALLOCATING: Final[dict[str, Any]] = {"nogil": True, "fastmath": set(FASTMATH), "error_model": "numpy"}
# Reference counting is disabled, because it would take three fifths of the time of an observation. Compiled code
# therefore cannot allocate, and the caller's arrays must outlive the call.
OPTIONS: Final[dict[str, Any]] = {**_ALLOCATING, "_nrt": False, "no_cfunc_wrapper": True}
# Inlined functions have no wrapper for Python, which would take a fifth of the compile time.
_INLINED: Final[dict[str, Any]] = {**OPTIONS, "forceinline": True, "no_cpython_wrapper": True}


def inline_jit(function: Function) -> Function:
    """Compile a function for inlining into each kernel that calls it. A call from Python crashes the process."""
    return numba.njit(**_INLINED)(function)  # type: ignore[no-any-return]


def source_inline_jit(function: Function) -> Function:
    """Insert the statements of a function into its caller before types are inferred."""
    return numba.njit(inline="always", **OPTIONS)(function)  # type: ignore[no-any-return]


def kernel_jit(
    *modules: ModuleType, allocates: bool = False, fastmath: Collection[str] = FASTMATH, parallel: bool = False
) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function that Python calls. It is cached on disk if numba finds a writable
    directory.

    Args:
        modules: Other modules whose functions it calls.
        allocates: Whether it, or a function that it calls, allocates arrays.
        fastmath: Flags of LLVM that relax floating-point arithmetic.
        parallel: Whether the iterations of `numba.prange` run in several threads.
    """
    options = {**(_ALLOCATING if allocates else OPTIONS), "fastmath": set(fastmath), "parallel": parallel}
    return partial(_cached, modules, options)


def cached_inline_jit(*modules: ModuleType) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function as `inline_jit` does, and caches it. Kernels can then share a
    function that compiles slowly."""
    return partial(_cached, modules, {**OPTIONS, "forceinline": True})


def _cached(modules: tuple[ModuleType, ...], options: dict[str, Any], function: Function) -> Function:
    function.__qualname__ = f"{function.__name__}_{source_digest(*modules, sys.modules[function.__module__])}"
    try:
        kernel = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no writable directory, so every process compiles for itself
        return numba.njit(**options)(function)  # type: ignore[no-any-return]
    lock = Path(kernel._cache.cache_path) / f"{function.__module__}.{function.__qualname__}.lock"
    kernel.compile = partial(_compile_once, kernel.compile, lock)
    return kernel  # type: ignore[no-any-return]


def _compile_once(compile_kernel: Callable[[Any], Any], lock: Path, signature: Any) -> Any:
    """Compile a kernel or load it from the cache in one process at a time. The next process then finds it in the
    cache."""
    with global_compiler_lock, _held(lock):
        return compile_kernel(signature)


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Hold a lock on a file of the cache. If this is not possible, each process compiles for itself."""
    try:
        lock.parent.mkdir(exist_ok=True)
        file = lock.open("ab")
    except OSError:
        yield
        return
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def source_digest(*modules: ModuleType) -> str:
    """Return a digest of the sources of these modules and of this module."""
    files = [__file__, *(str(module.__file__) for module in modules)]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]


def disable_compilation(kernel: Any) -> None:
    """Disable the compilation of a kernel for new argument types. Later calls with such types raise TypeError, because
    compiling would stop all requests for half a minute."""
    kernel.disable_compile()


@contextmanager
def call_on_compile(callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` once in a context, before the first function is compiled."""
    is_called = False

    def call_once() -> None:
        nonlocal is_called
        if not is_called:
            is_called = True
            callback()

    with compile_events(call_once, lambda: None):
        yield


@contextmanager
def compile_events(on_start: Callable[[], object], on_end: Callable[[], object]) -> Iterator[None]:
    """Call `on_start` before and `on_end` after the compilation of each function in a context. They are not called for
    cached functions."""

    class Listener(numba.core.event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            on_start()

        def on_end(self, _: Any) -> None:
            on_end()

    with numba.core.event.install_listener("numba:compile", Listener()):
        yield


def run_with_locks(tasks: Iterable[CompileTask]) -> None:
    """Run each task with a lock on its module. Tasks whose module is locked by another process run last.

    Therefore, of several processes that start together, only one compiles each kernel. The others find it in the cache.
    """
    for task in run_unlocked(tasks):
        _run_with_lock(task, waits=True)


def run_unlocked(tasks: Iterable[CompileTask]) -> list[CompileTask]:
    """Run each task whose module is not locked by another process. Return the other tasks."""
    return [task for task in tasks if not _run_with_lock(task, waits=False)]


def _run_with_lock(task: CompileTask, *, waits: bool) -> bool:
    """Run a task with a lock on the module's source file, which every process can open. Return False if another process
    holds the lock and `waits` is false."""
    module, run = task
    if module is None:
        run()
        return True
    with Path(str(module.__file__)).open("rb") as source:
        try:
            fcntl.flock(source, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # on a file system without locks, each process compiles for itself
            pass
        run()
    return True
