"""The instruction set that CPU kernels are compiled for, the same on every machine.

x86-64-v3 (AVX2 and FMA, processors from 2013 on) on x86, `generic` elsewhere. A fixed target gives the same bits, and a
valid kernel cache, on all machines. It costs no measurable speed: loops over few lanes gain nothing from AVX-512. An
x86 processor without these instructions uses `generic`, whose last bits may differ.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Final

X86_64_V3: Final = "x86-64-v3"
GENERIC: Final = "generic"
# What x86-64-v3 adds to the x86-64 baseline, by the names of /proc/cpuinfo.
FLAGS: Final = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
CPUINFO: Final = Path("/proc/cpuinfo")


def target_processor(machine: str = platform.machine(), cpuinfo: Path = CPUINFO) -> str:
    """Return the name of LLVM's processor to compile for.

    Args:
        machine: Architecture, as in `platform.machine()`.
        cpuinfo: The kernel's list of processor flags. A system without one is assumed to have x86-64-v3.
    """
    if machine.lower() not in ("x86_64", "amd64"):
        return GENERIC
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return X86_64_V3
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), FLAGS)
    return X86_64_V3 if flags >= FLAGS else GENERIC


def set_target() -> None:
    """Make numba compile for `target_processor()`, unless NUMBA_CPU_NAME says otherwise. Call before compiling."""
    if "NUMBA_CPU_NAME" in os.environ:
        return
    os.environ["NUMBA_CPU_NAME"] = target_processor()
    os.environ["NUMBA_CPU_FEATURES"] = ""  # those of the target and no others
    if "numba" in sys.modules:  # it has read its environment
        from numba.core import config

        config.reload_config()
