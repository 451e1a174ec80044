"""Kernels that processes which start together compile once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba.core.errors import NumbaError

from rfa.runtime import compiling
from tests.runtime.filters import test_dense_numba as first
from tests.runtime.filters import test_dense_numba_learned as second

PATIENCE = 60


def test_what_another_process_compiles_comes_last_and_is_waited_for() -> None:
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        order.append("one: first")

    one = threading.Thread(
        target=compiling.run_with_locks, args=([(first, slow), (second, lambda: order.append("one: second"))],)
    )
    one.start()
    assert begun.wait(PATIENCE)

    def quick() -> None:
        order.append("other: second")
        go_on.set()

    compiling.run_with_locks([(first, lambda: order.append("other: first")), (second, quick)])
    one.join(PATIENCE)
    assert order[:2] == ["other: second", "one: first"]
    assert sorted(order[2:]) == ["one: second", "other: first"]


def test_a_task_that_fails_lets_go() -> None:
    def fail() -> None:
        raise ValueError("no")

    done: list[ModuleType] = []
    try:
        compiling.run_with_locks([(first, fail)])
    except ValueError:
        compiling.run_with_locks([(first, lambda: done.append(first))])
    assert done == [first]


MODULE = """
import sys
from numba.core import event
from rfa.runtime.compiling import cached_inline_jit, call_on_compile, kernel_jit

@cached_inline_jit()
def slow(x):
    return 2 * x

@kernel_jit()
def made_of_it(x):
    return slow(x) + 1

if __name__ == "__main__":
    calls = []
    with event.install_recorder("numba:compile") as recorder, call_on_compile(lambda: calls.append("called")):
        assert {"slow": slow, "made_of_it": made_of_it}[sys.argv[1]](3.0) == float(sys.argv[2])
    print(*(e.data["dispatcher"].__name__ for _, e in recorder.buffer if e.is_start), *calls)
"""


def started(folder: Path, name: str, result: float) -> subprocess.Popen[str]:
    """A process that calls a kernel of MODULE."""
    (folder / "module_of_kernels.py").write_text(MODULE)
    path = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "module_of_kernels.py", name, str(result)], cwd=folder,
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> list[str]:
    """What it compiled."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out.split()


def test_a_function_is_compiled_once_for_all_kernels_and_processes(tmp_path: Path) -> None:
    """An inlined one that is cached by a process before, and a kernel by one of two that call it together."""
    assert ended(started(tmp_path, "slow", 6.0)) == ["slow", "called"]
    processes = [started(tmp_path, "made_of_it", 7.0) for _ in range(2)]
    assert sorted(map(ended, processes)) == [[], ["made_of_it", "called"]]


def test_a_kernel_that_makes_an_array_is_an_error() -> None:
    """Its references are not counted: it would never be freed."""

    @compiling.kernel_jit()
    def made(count):  # type: ignore[no-untyped-def]
        return np.empty(count)

    with pytest.raises(NumbaError):
        made(3)


KERNEL = """
import numba, numpy as np
from rfa.runtime.compiling import OPTIONS
from rfa.runtime.filters.transition_numba import COMPILER_OPTIONS

@numba.njit(**{**COMPILER_OPTIONS, "cache": False})
def total(values):
    made = np.zeros(len(values))
    for k in range(len(values)):
        made[k] = values[k]
    return made.sum()

@numba.njit(**OPTIONS)
def kernel(values):
    return total(values)
"""


def test_what_makes_arrays_may_be_compiled_by_a_kernel_that_makes_none() -> None:
    """Whichever of them runs first: numba lets what is called take over the options of its caller."""
    names: dict[str, Any] = {}
    exec(KERNEL, names)
    assert names["kernel"](np.ones(3)) == 3
