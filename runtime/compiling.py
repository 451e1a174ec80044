"""Compile functions with numba, and cache kernels on disk by the sources that they are built from.

numba invalidates its cache by the file of the kernel alone, but a kernel calls functions of other files. So inlined
functions are not cached, and the name of a cached function contains a digest of all its source files.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import numba
import numba.core.event

Function = TypeVar("Function", bound=Callable[..., Any])
# A function that compiles kernels, and the module whose file is locked meanwhile; None takes no lock.
CompileTask = tuple[ModuleType | None, Callable[[], None]]
# No flag that assumes finite numbers: missing values are NaN.
FASTMATH: Final = frozenset({"contract", "nsz"})
_ALLOCATING: Final[dict[str, Any]] = {"nogil": True, "fastmath": set(FASTMATH), "error_model": "numpy"}
# Without reference counting, which took three fifths of the time of an observation. So compiled code cannot allocate:
# the caller's arrays outlive the call.
OPTIONS: Final[dict[str, Any]] = {**_ALLOCATING, "_nrt": False, "no_cfunc_wrapper": True}
# Without a wrapper for Python, which takes a fifth of the time to compile.
_INLINED: Final[dict[str, Any]] = {**OPTIONS, "forceinline": True, "no_cpython_wrapper": True}


def inline_jit(function: Function) -> Function:
    """Compile a function into each kernel that calls it. A call from Python crashes the process."""
    return numba.njit(**_INLINED)(function)  # type: ignore[no-any-return]


def source_inline_jit(function: Function) -> Function:
    """Insert the statements of a function into its caller, before types are inferred."""
    return numba.njit(inline="always", **OPTIONS)(function)  # type: ignore[no-any-return]


def kernel_jit(
    *modules: ModuleType, allocates: bool = False, fastmath: Collection[str] = FASTMATH
) -> Callable[[Function], Function]:
    """Compile a function that Python calls, and cache it on disk where numba finds a writable folder.

    Args:
        modules: other modules whose functions it calls.
        allocates: whether it, or a function that it calls, allocates arrays.
        fastmath: flags of LLVM.
    """
    return partial(_cached, modules, {**(_ALLOCATING if allocates else OPTIONS), "fastmath": set(fastmath)})


def cached_inline_jit(*modules: ModuleType) -> Callable[[Function], Function]:
    """`inline_jit`, cached: kernels that call a function that compiles slowly share it."""
    return partial(_cached, modules, {**OPTIONS, "forceinline": True})


def _cached(modules: tuple[ModuleType, ...], options: dict[str, Any], function: Function) -> Function:
    function.__qualname__ = f"{function.__name__}_{source_digest(*modules, sys.modules[function.__module__])}"
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no writable folder: every process compiles for itself
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


def source_digest(*modules: ModuleType) -> str:
    """A digest of the sources of these modules, and of this one."""
    files = [__file__, *(str(module.__file__) for module in modules)]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]


def disable_compilation(kernel: Any) -> None:
    """From here on a call with new argument types is a TypeError: compiling would stop all requests for half a
    minute."""
    kernel.disable_compile()


@contextmanager
def call_on_compile(callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` once, before the first function that is compiled in this context."""
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
    """Call `on_start` before and `on_end` after each function that is compiled in this context; not for cached ones."""

    class Listener(numba.core.event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            on_start()

        def on_end(self, _: Any) -> None:
            on_end()

    with numba.core.event.install_listener("numba:compile", Listener()):
        yield


def run_with_locks(tasks: Iterable[CompileTask]) -> None:
    """Run each task with a lock per module; those that another process has locked run last.

    So processes that start together compile each kernel once: the others find it in the cache.
    """
    for task in run_unlocked(tasks):
        _run_with_lock(task, waits=True)


def run_unlocked(tasks: Iterable[CompileTask]) -> list[CompileTask]:
    """Run each task whose module no other process has locked; returns the others."""
    return [task for task in tasks if not _run_with_lock(task, waits=False)]


def _run_with_lock(task: CompileTask, *, waits: bool) -> bool:
    """Run a task under a lock of the module's source file, which every process can open; False if it is locked."""
    module, run = task
    if module is None:
        run()
        return True
    with Path(str(module.__file__)).open("rb") as source:
        try:
            fcntl.flock(source, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks: each process compiles for itself
            pass
        run()
    return True
