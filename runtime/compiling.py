"""Functions in machine code where numba is installed, and as they stand where it is not.

numba keeps on disk what it compiled, and asks of a function whether its own file changed since. A function is made of
others, of other files too; so `part` of one is never kept, and a kernel is kept by the `stamp` of all files that it is
made of.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

numba: Any
try:
    import numba
    import numba.core.event
except ImportError:
    numba = None
else:
    if numba.config.DISABLE_JIT:  # numba's own switch: functions stay what they are
        numba = None

Function = TypeVar("Function", bound=Callable[..., Any])
# What compiles when it runs first, and a module that it is made of; None is for what need not be alone.
Task = tuple[ModuleType | None, Callable[[], None]]
HAS_COMPILER: Final = numba is not None
# Fused multiply-adds and zeros without a sign, and no other licence: missing values are NaN. What is compiled makes no
# arrays, which would be an error: it uses the caller's, which outlive the call, and so counts no references to them.
# That took three fifths of the time of an observation.
OPTIONS: Final[dict[str, Any]] = {
    "nogil": True, "fastmath": {"contract", "nsz"}, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True,
}  # fmt: skip


def part(function: Function) -> Function:
    """A function that kernels are made of."""
    return function if numba is None else numba.njit(forceinline=True, **OPTIONS)(function)


def merged(function: Function) -> Function:
    """A part of one other part, whose lines it becomes."""
    return function if numba is None else numba.njit(inline="always", **OPTIONS)(function)


def kernel(*modules: ModuleType) -> Callable[[Function], Function]:
    """A function that Python calls, made of these modules; kept on disk, where there is a place for it.

    It is kept under the stamp of its sources: what numba keeps has the classes of its arguments in it, and could not
    even be looked at where one of them has another name by now.
    """
    return partial(_kept, modules, OPTIONS)


def whole_kernel(*modules: ModuleType) -> Callable[[Function], Function]:
    """A kernel that makes arrays of its own, and calls others that do."""
    return partial(_kept, modules, {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}})


def kept_part(*modules: ModuleType) -> Callable[[Function], Function]:
    """A part that is kept as well: where one takes long to compile, the kernels that are made of it share that."""
    return partial(_kept, modules, {**OPTIONS, "forceinline": True})


def _kept(modules: tuple[ModuleType, ...], options: dict[str, Any], function: Function) -> Function:
    if numba is None:
        return function
    function.__qualname__ = f"{function.__name__}_{stamp(*modules, sys.modules[function.__module__])}"
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder that numba may write to: every process compiles for itself
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


def settle(function: Any) -> None:
    """From here on a kernel compiles nothing: a call with types that it has not seen yet is a TypeError at once, and
    not half a minute in which a request, and all beside it, waits."""
    if numba is not None:
        function.disable_compile()


@contextmanager
def telling_of_compilation(tell: Callable[[], object]) -> Iterator[None]:
    """Call `tell` before the first kernel that is compiled in here, if one is: that takes up to half a minute."""
    has_told = False

    def tell_once() -> None:
        nonlocal has_told
        if not has_told:
            has_told = True
            tell()

    with compilations(tell_once, lambda: None):
        yield


@contextmanager
def compilations(on_start: Callable[[], object], on_end: Callable[[], object]) -> Iterator[None]:
    """Call `on_start` before and `on_end` after each function that is compiled in here; not for cached ones."""
    if numba is None:
        yield
        return

    class Listener(numba.core.event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            on_start()

        def on_end(self, _: Any) -> None:
            on_end()

    with numba.core.event.install_listener("numba:compile", Listener()):
        yield


def in_turn(tasks: Iterable[Task]) -> None:
    """Run all of them, each when no other process runs the one of the same module: it finds it compiled then. So
    processes that start together share the work, and do not each do all of it."""
    for task in run_free(tasks):
        _run_alone(task, waits=True)


def run_free(tasks: Iterable[Task]) -> list[Task]:
    """Run those whose module no other process compiles; returns the others."""
    return [task for task in tasks if not _run_alone(task, waits=False)]


def _run_alone(task: Task, *, waits: bool) -> bool:
    """Run it under a lock of the module's source file, which every process can open; False if it is taken."""
    module, run = task
    if module is None:
        run()
        return True
    with Path(str(module.__file__)).open("rb") as source:
        try:
            fcntl.flock(source, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks: each for itself
            pass
        run()
    return True


def stamp(*modules: ModuleType) -> str:
    """A digest of the sources of these modules, and of this one."""
    files = [__file__, *(str(module.__file__) for module in modules)]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]
