"""Kernels are compiled for one target, whatever processor this machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rfa.runtime.processor import FLAGS, GENERIC, X86_64_V3, converts_half, target_processor

PROGRAM = """
{imports}
import numba
import numpy as np

@numba.njit(fastmath=True)
def total(values):
    found = 0.0
    for value in values:
        found += value * value
    return found

total(np.ones(64))
print(*total.overloads[total.signatures[0]].library.codegen.magic_tuple()[1:], sep=",")
"""


@pytest.mark.parametrize(
    ("machine", "flags", "target"),
    [
        ("x86_64", sorted(FLAGS), X86_64_V3),
        ("x86_64", [*sorted(FLAGS), "avx512f"], X86_64_V3),
        ("x86_64", sorted(FLAGS - {"avx2"}), GENERIC),
        ("AMD64", sorted(FLAGS), X86_64_V3),
        ("aarch64", sorted(FLAGS), GENERIC),
    ],
)
def test_the_target_depends_on_the_baseline_alone(tmp_path: Path, machine: str, flags: list[str], target: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: fpu sse2 {' '.join(flags)}\nbugs\t\t:\n")
    assert target_processor(machine, cpuinfo) == target


def test_a_system_without_cpuinfo_has_the_usual_target(tmp_path: Path) -> None:
    assert target_processor("x86_64", tmp_path / "missing") == X86_64_V3


def test_the_targets_that_convert_float16() -> None:
    assert converts_half("x86_64-unknown-linux-gnu", X86_64_V3, "")
    assert converts_half("x86_64-unknown-linux-gnu", "nehalem", "+avx,+f16c")
    assert converts_half("aarch64-unknown-linux-gnu", GENERIC, "") and converts_half("arm64-apple-darwin", GENERIC, "")
    assert not converts_half("x86_64-unknown-linux-gnu", GENERIC, "")
    assert not converts_half("powerpc64le-unknown-linux-gnu", GENERIC, "")


def test_numba_compiles_for_the_target() -> None:
    """Also where numba was imported before."""
    code = PROGRAM.format(imports="import numba\nimport rfa.runtime")
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=_without_target()
    )
    assert done.stdout.strip() == f"{target_processor()},"


def test_the_operator_may_name_another_target() -> None:
    code = PROGRAM.format(imports="import rfa.runtime")
    environment = {**_without_target(), "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "generic,"


def _without_target() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CPU")}
