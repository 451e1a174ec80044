"""A kernel in PTX, run on tensors of the CPU: compiles the emulator (machine.h, opcodes.cpp) once, and calls it.

It needs a C++ compiler, `c++`, that knows C++20.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torch import Tensor

from tests.ptx.emulator.operands import Opcode, Operand
from tests.ptx.emulator.program import Instruction, Program, parse

SOURCES = ("layout.h", "machine.h", "arithmetic.h", "lanes.h", "matrix.h", "opcodes.cpp")
COMPILER = "c++"
# Numbers must come out as IEEE 754 has them: nothing is contracted.
FLAGS = ("-std=c++20", "-O2", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC")
# Grids that CUDA takes.
GRID_LIMITS = (2**31 - 1, 65535, 65535)
REPORTED = 8
# Of a line that is told: a product of matrices names a hundred registers.
LONGEST = 80
# Instructions of a launch: minutes.
BUDGET = 10**9
Functions = Literal["exact", "up", "down", "either"]


class _Fault(ctypes.Structure):
    _fields_ = (
        ("what", ctypes.c_char_p), ("instruction", ctypes.c_int32), ("other", ctypes.c_int32),
        ("warp", ctypes.c_int32), ("lane", ctypes.c_int32), ("cta", ctypes.c_uint32 * 3), ("address", ctypes.c_uint64),
    )  # fmt: skip


class _Range(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        *((name, ctypes.c_int32) for name in (
            "warps", "register_bytes", "shared_bytes", "local_bytes", "functions", "n_ranges",
        )),
        *((name, ctypes.c_uint64) for name in ("seed", "budget", "spent")),
        ("parameters", ctypes.POINTER(ctypes.c_uint64)), ("ranges", ctypes.POINTER(_Range)),
    )  # fmt: skip


class FaultsError(RuntimeError):
    """A kernel did what it may not: the faults of its first CTA that has any, by instruction, and their number."""


@dataclass(frozen=True)
class Play:
    """How a kernel is played.

    seed: 0 takes CTAs and warps in turn, from barrier to barrier; any other shuffles the one and interrupts the other
        anywhere.
    functions: what ex2, lg2 and rcp are off by, one ulp in this direction ("either": by a hash of the argument).
    """

    seed: int = 0
    functions: Functions = "exact"


IN_TURN = Play()


def missing() -> str | None:
    """Why no kernel can be run here, or None."""
    if platform.machine() != "x86_64":
        return f"the emulator is built for x86_64, not {platform.machine()}"
    return None if shutil.which(COMPILER) else f"the emulator needs a C++ compiler, {COMPILER}"


@functools.cache
def _library() -> ctypes.CDLL:
    """The emulator; compiled code is kept by all that it is made of, the processor included."""
    folder = Path(__file__).resolve().parent
    version = subprocess.run([COMPILER, "--version"], capture_output=True, check=True).stdout
    processor = subprocess.run(
        [COMPILER, "-march=native", "-Q", "--help=target"], capture_output=True, check=False
    ).stdout
    made_of = [version, processor, *map(str.encode, FLAGS), *((folder / name).read_bytes() for name in SOURCES)]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = caches / "rfa-server" / f"ptx-{hashlib.sha256(b'|'.join(made_of)).hexdigest()[:16]}.so"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with (kept.parent / "ptx.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process compiles; given back with the file, also by one that dies
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=kept.parent) as place:
                out = Path(place) / kept.name
                subprocess.run([COMPILER, *FLAGS, str(folder / SOURCES[-1]), "-o", str(out)], check=True)
                out.replace(kept)
    library = ctypes.CDLL(str(kept))
    library.ptx_name.restype = library.ptx_operands.restype = ctypes.c_char_p
    library.ptx_run.restype = ctypes.c_long
    library.ptx_run.argtypes = (
        ctypes.POINTER(Instruction), ctypes.c_int, ctypes.POINTER(Operand), ctypes.POINTER(_Launch),
        ctypes.POINTER(_Fault), ctypes.c_long,
    )  # fmt: skip
    return library


@functools.cache
def opcodes() -> dict[str, Opcode]:
    """By name, every instruction that the emulator knows."""
    library = _library()
    numbers = range(library.ptx_count())
    return {library.ptx_name(i).decode(): Opcode.of(i, library.ptx_operands(i).decode()) for i in numbers}


@functools.lru_cache(maxsize=64)
def load(ptx: str) -> Program:
    """A kernel, ready to be run.

    Raises:
        UnknownPtxError: see `parse`.
    """
    return parse(ptx, opcodes())


def run(
    program: Program, grid: Sequence[int], arguments: Sequence[Tensor | int | float | None], *,
    shared_bytes: int = 0, play: Play = IN_TURN, budget: int = BUDGET,
) -> int:  # fmt: skip
    """Run a kernel; it writes to its tensors, whose storages are all the memory that it may touch. How many
    instructions of a warp that took.

    Args:
        grid: CTAs, one to three numbers.
        arguments: in the order of the kernel's parameters; None is a null pointer, and so are those left out.
        shared_bytes: dynamic shared memory of a CTA.
        budget: instructions, of all warps together.

    Raises:
        FaultsError: see machine.h for what is a fault.
        ValueError: the launch is none that CUDA would take.
    """
    sizes = (*grid, 1, 1)[:3]
    if not all(0 < size <= limit for size, limit in zip(sizes, GRID_LIMITS, strict=True)):
        raise ValueError(f"{program.name}: CUDA takes no grid of {sizes}")
    values = [*map(_bits, arguments), *(0 for _ in program.parameters[len(arguments) :])]
    if len(values) != len(program.parameters):
        raise ValueError(f"{program.name} takes {len(program.parameters)} arguments, got {len(arguments)}")
    storages = [x.untyped_storage() for x in arguments if isinstance(x, Tensor)]
    ranges = [_Range(x.data_ptr(), x.data_ptr() + x.nbytes()) for x in storages]
    ranges += [_Range(start := ctypes.addressof(x), start + len(x)) for x in program.constants]
    launch = _Launch(
        sizes, program.warps, program.register_bytes, shared_bytes, program.local_bytes,
        get_args(Functions).index(play.functions), len(ranges), play.seed, budget, 0,
        (ctypes.c_uint64 * max(1, len(values)))(*values), (_Range * max(1, len(ranges)))(*ranges),
    )  # fmt: skip
    faults = (_Fault * REPORTED)()
    count = _library().ptx_run(
        program.instructions, len(program.instructions), program.operands, ctypes.byref(launch), faults, REPORTED
    )
    if count:
        lines = [_reported(program, fault) for fault in faults if fault.what]
        raise FaultsError(f"{program.name}: {count} faults\n" + "\n".join(lines))
    return int(launch.spent)


def _bits(argument: Tensor | int | float | None) -> int:
    if argument is None:
        return 0
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    if isinstance(argument, float):
        return int.from_bytes(struct.pack("<f", argument), "little")
    return int(argument) & (2**64 - 1)


def _reported(program: Program, fault: _Fault) -> str:
    def line(index: int) -> str:
        text = program.lines[index]
        return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")

    where = f"cta {tuple(fault.cta)}, warp {fault.warp}, lane {fault.lane}, {fault.address:#x}"
    other = f", against {line(fault.other)}" if fault.other >= 0 else ""
    return f"{fault.what.decode()}: {line(fault.instruction)}{other}; {where}"
