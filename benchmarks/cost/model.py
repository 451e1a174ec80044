"""Clocks of a kernel from its machine code.

An iteration of a loop needs these clocks of an SM's units (n instructions of a warp, w warps, lanes per clock):

    tensor = FLOP / (FLOP per clock)     pipe = w · 32 · n / lanes, of issue, fma, alu, mufu, shared memory
    vector = the largest of the pipes    l2 = bytes copied / (bytes per clock)

With a copy requested `ahead` iterations before its use and k CTAs on the SM:

    wait      = max(0, L2's latency - ahead · (tensor + vector)) + barriers + 2 · latency of a product
    bound     = max(tensor, vector, l2)                           everything overlaps, nothing waits
    predicted = tensor + vector + max(0, wait - (k - 1)(tensor + vector)) / k
    serial    = the same with mufu and the busiest other pipe in sequence instead of vector

The prediction is pessimistic: products and vector instructions never overlap. CTAs are assigned to the SMs in launch
order. Not modelled: stalls between dependent instructions of a warp, bank conflicts, instruction cache misses, uneven
memory traffic, power throttling.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rfa.benchmarks.cost.gpus import LANES_OF_ISSUE, Gpu

THREADS_OF_A_WARP = 32
# Latencies that an iteration cannot hide, in clocks: of HMMA.16816 on an A100 (arXiv 2208.11174), and of a barrier
# (assumed).
PRODUCT_CLOCKS, BARRIER_CLOCKS = 33.0, 30.0
KINDS = ("bound", "predicted", "serial")

PIPES = {
    "fma": {"FFMA", "FMUL", "FADD", "FFMA2", "FMUL2", "FADD2", "IMAD", "HFMA2", "HADD2", "HMUL2"},
    "alu": {
        "FMNMX", "FMNMX3", "FSEL", "SEL", "ISETP", "FSETP", "IADD3", "LOP3", "SHF", "LEA", "PRMT", "F2FP", "I2FP",
        "VIADD", "VIMNMX", "PLOP3", "MOV", "FSET", "IABS", "IMNMX", "CS2R",
    },
    "mufu": {"MUFU", "I2F", "F2I", "F2F", "FRND"},
    "shared": {"LDS", "STS", "LDSM", "STSM", "SHFL", "LDGSTS", "LDG", "STG", "LDL", "STL", "LDTM", "STTM"},
}  # fmt: skip
# 32-bit words that a thread moves, by the end of the instruction's name.
WORDS = {"128": 4, "64": 2, "4": 4, "2": 2}


@dataclass(frozen=True)
class Estimate:
    """The time in seconds (or clocks) in three cases: full overlap, prediction, no overlap."""

    bound: float
    predicted: float
    serial: float

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.bound + other.bound, self.predicted + other.predicted, self.serial + other.serial)

    def times(self, factor: float) -> Estimate:
        return Estimate(self.bound * factor, self.predicted * factor, self.serial * factor)


@dataclass(frozen=True)
class Turn:
    """Clocks of an SM for one iteration of a CTA.

    Args:
        vector: Clocks of the busiest pipe.
        in_line: Clocks of the special functions, then of the busiest other pipe.
        fixed: Waits that no prefetch hides.
        latency: Latency of its copies.
        ahead: Iterations by which these are prefetched.
    """

    tensor: float
    vector: float
    in_line: float
    pipe: str = "issue"
    l2: float = 0.0
    fixed: float = 0.0
    latency: float = 0.0
    ahead: float = 0.0

    @property
    def busy(self) -> float:
        return self.tensor + self.vector

    @property
    def wait(self) -> float:
        return max(0.0, self.latency - self.ahead * self.busy) + self.fixed

    @property
    def bound_by(self) -> str:
        units = {"tensor": self.tensor, self.pipe: self.vector, "l2": self.l2}
        return max(units, key=lambda name: units[name])

    def clocks(self, resident: int) -> Estimate:
        """Return the clocks of an SM for an iteration of one of this many CTAs."""
        bound = max(self.tensor, self.vector, self.l2)

        def hiding(busy: float) -> float:
            return max(bound, busy + max(0.0, self.wait - (resident - 1) * busy) / resident)

        return Estimate(bound, hiding(self.busy), hiding(self.tensor + self.in_line))


def pipes(opcodes: Mapping[str, float], warps: int, gpu: Gpu) -> dict[str, float]:
    """Return pipe → clocks of an SM for the instructions of one warp, run by all warps of a CTA."""
    threads = warps * THREADS_OF_A_WARP
    lanes = {"fma": gpu.fma, "alu": gpu.alu, "mufu": gpu.mufu, "shared": gpu.shared_lanes}
    found = {"issue": threads * sum(opcodes.values()) / LANES_OF_ISSUE}
    for pipe, families in PIPES.items():
        work = sum(count * _words(opcode, pipe) for opcode, count in opcodes.items() if _family(opcode) in families)
        found[pipe] = threads * work / lanes[pipe]
    return found


def _family(opcode: str) -> str:
    return opcode.split(".", maxsplit=1)[0]


def _words(opcode: str, pipe: str) -> int:
    return WORDS.get(opcode.rpartition(".")[2], 1) if pipe == "shared" else 1


def handed_out(clocks: Iterable[float], places: int) -> float:
    """Return when the last of these CTAs ends, each taking the first free place."""
    free = [0.0] * places
    for own in clocks:
        heapq.heapreplace(free, free[0] + own)
    return max(free)


def of_kernel(
    turns: Sequence[Sequence[float]], each: Sequence[Estimate], once: Estimate, resident: int, sms: int
) -> Estimate:
    """Return the clocks of a kernel.

    Args:
        turns: Iterations of each loop, for every CTA in launch order.
        each: Clocks of an SM for an iteration of each loop, while `resident` CTAs share it.
        once: Costs of a CTA outside its loops: clocks of an SM, and elapsed clocks while it shares the SM.
    """
    bound = sum(once.bound + sum(n * e.bound for n, e in zip(own, each, strict=True)) for own in turns) / sms

    def passed(kind: str) -> float:
        def own(ctas: Sequence[float]) -> float:
            shared = sum(n * getattr(e, kind) for n, e in zip(ctas, each, strict=True))
            return float(getattr(once, kind) + resident * shared)

        return handed_out(map(own, turns), resident * sms)

    return Estimate(bound, max(bound, passed("predicted")), max(bound, passed("serial")))
