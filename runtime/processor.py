"""Instruction set for which CPU kernels are compiled. It is the same on every machine.

The target is x86-64-v3 (AVX2 and FMA, processors since 2013) on x86, and `generic` elsewhere. With a fixed target, all
machines compute the same bits and can use the same kernel cache. This has no measurable effect on speed, because loops
over few elements do not benefit from AVX-512. On an x86 processor without these instructions, the target is `generic`,
and the last bits of results may differ.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Final

X86_64_V3: Final = "x86-64-v3"
GENERIC: Final = "generic"
# Names in /proc/cpuinfo of the extensions that x86-64-v3 has in addition to the x86-64 baseline.
FLAGS: Final = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
CPUINFO: Final = Path("/proc/cpuinfo")


def target_processor(machine: str = platform.machine(), cpuinfo: Path = CPUINFO) -> str:
    """Return the name of the processor for which LLVM compiles kernels.

    Args:
        machine: Architecture, as returned by `platform.machine()`.
        cpuinfo: File that contains the processor flags. A system without this file is assumed to support x86-64-v3.
    """
    if machine.lower() not in ("x86_64", "amd64"):
        return GENERIC
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return X86_64_V3
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), FLAGS)
    return X86_64_V3 if flags >= FLAGS else GENERIC


def converts_half(triple: str, processor: str, features: str) -> bool:
    """Return whether a target of LLVM has an instruction that converts float16 to float32, as far as known here."""
    return triple.startswith(("aarch64", "arm64")) or processor == X86_64_V3 or "+f16c" in features


def set_target() -> None:
    """Set numba's target to `target_processor()`, unless NUMBA_CPU_NAME is set. Call it before anything is compiled."""
    if "NUMBA_CPU_NAME" in os.environ:
        return
    os.environ["NUMBA_CPU_NAME"] = target_processor()
    os.environ["NUMBA_CPU_FEATURES"] = ""  # use the features of the target only
    if "numba" in sys.modules:  # numba has already read its environment
        from numba.core import config

        config.reload_config()
