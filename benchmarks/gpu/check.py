"""`rfa gpu-check`: checks and timings on a GPU, in one file.

All checks run at once, each in its own process. Then timings run one by one. A part runs only if its check passed and
its estimate fits into the remaining time.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from tqdm import tqdm

from rfa.benchmarks.gpu.decode import check_paper, measure_paper
from rfa.benchmarks.gpu.device import gpu_hardware, require_gpu
from rfa.benchmarks.gpu.paired import EventTimer
from rfa.benchmarks.gpu.prompts import check_paper_prompts, measure_paper_prompts
from rfa.benchmarks.gpu.series import run_series_gpu
from rfa.benchmarks.kernels.attention import (
    EAGER,
    FLASH,
    FLEX,
    LENGTHS,
    OURS,
    WIDTHS,
    check_attention,
    measure_attention,
    measure_memory,
)
from rfa.benchmarks.kernels.slots import check_slots, measure_slots
from rfa.benchmarks.kernels.speed import Measured
from rfa.benchmarks.kernels.training import measure_training
from rfa.benchmarks.kernels.truth import WrongResultError
from rfa.measured import origin, write_result

# Default time limit in seconds.
LONGEST: Final = 25 * 60.0
SHORT, LONG = LENGTHS[0], LENGTHS[-1]
DECODING_IS_RIGHT, PROMPTS_ARE_RIGHT = "decoding is right", "prompts are right"


class GpuCheckError(ValueError):
    """A result is wrong, or a part failed."""


@dataclass(frozen=True)
class Part:
    """One benchmark.

    Args:
        seconds: Estimate from an H200 with 16 cores.
        needs: Name of the check that must have passed.
    """

    name: str
    seconds: float
    run: Callable[[], dict[str, Any]]
    needs: str | None = None


def together(measured: Iterable[Measured]) -> dict[str, Any]:
    """Return rows and bars of all shapes."""
    found = list(measured)
    return {
        "rows": [row for rows, _ in found for row in rows],
        "bars": [bar.to_dict() for _, bars in found for bar in bars],
    }


def attention(length: int, names: Sequence[str], widths: Sequence[int] = WIDTHS) -> dict[str, Any]:
    """Measure our attention and the named rivals."""
    return together(measure_attention(EventTimer(), widths=widths, lengths=(length,), names=names))


# Timings wait for the slowest check, so checks that compile for minutes are not included.
CHECKS: Final[Sequence[Part]] = (
    *(Part(f"attention is right, {width} reals", 30, partial(check_attention, width, SHORT)) for width in WIDTHS),
    Part("slots are right", 25, check_slots),
    Part(DECODING_IS_RIGHT, 20, check_paper),
    Part(PROMPTS_ARE_RIGHT, 65, check_paper_prompts),
)
# Compile time of FlexAttention in seconds, by width.
FLEX_COMPILES: Final = {64: 90, 128: 50}
PARTS: Final[Sequence[Part]] = (
    Part("decoding", 15, measure_paper, needs=DECODING_IS_RIGHT),
    Part("prompts", 10, measure_paper_prompts, needs=PROMPTS_ARE_RIGHT),
    # Eager attention takes too much memory and time at this length.
    Part(f"attention, {LONG:,} tokens", 40, partial(attention, LONG, (OURS, FLASH))),
    Part(f"attention, {SHORT:,} tokens", 50, partial(attention, SHORT, (OURS, FLASH, EAGER))),
    Part("training", 25, lambda: together([measure_training(EventTimer(repeats=5, is_flushing=False))])),
    Part("slots", 40, lambda: together([measure_slots(EventTimer())])),
    Part("memory", 20, lambda: together([measure_memory(EventTimer())])),
    *(
        Part(
            f"attention beside {FLEX}, {width} reals, {length:,} tokens",
            FLEX_COMPILES[width],
            partial(attention, length, (OURS, FLEX), (width,)),
        )
        for length in (LONG, SHORT)
        for width in WIDTHS
    ),
    Part("long series", 165, run_series_gpu),
)


def outcome(part: Part) -> dict[str, Any]:
    """Run a part and return its result or failure."""
    try:
        return {"status": "done", **part.run()}
    except WrongResultError as error:
        return {"status": "wrong", "reason": str(error)}
    except Exception as error:  # the parts after it can still run
        lines = traceback.format_exception(error)
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}".split("\n")[0], "trace": lines[-12:]}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def timed_outcome(part: Part) -> dict[str, Any]:
    """Return `outcome`, and its duration in seconds."""
    begun = time.monotonic()
    return {**outcome(part), "seconds": round(time.monotonic() - begun, 1)}


def checked(checks: Sequence[Part]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the result of each check by name as it ends. As many run at once as there are cores."""
    if not checks:
        return
    cores = os.cpu_count() or 1
    workers = min(len(checks), cores)
    # Limits CPU threads, so that processes do not compete for all cores.
    threads = torch.set_num_threads, (cores // workers,)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), *threads) as processes:
        running = {processes.submit(timed_outcome, check): check.name for check in checks}
        for one in as_completed(running):
            yield running[one], one.result()


def run_gpu_check(
    out: Path, *, seconds: float = LONGEST, checks: Sequence[Part] = CHECKS, parts: Sequence[Part] = PARTS,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:  # fmt: skip
    """Run checks and parts for at most `seconds`, and write the file after each."""
    if not 0 < seconds < math.inf:
        raise ValueError(f"the seconds to measure for must be positive and finite, got {seconds}")
    device = require_gpu()
    document = origin("rfa gpu-check")
    document |= {"hardware": document["hardware"] | gpu_hardware(device), "longest_seconds": seconds, "parts": {}}
    write_result(out, document)  # an unwritable file is detected before GPU time is spent
    begun = clock()

    def keep(name: str, found: dict[str, Any]) -> None:
        document["parts"][name] = found
        document["seconds"] = round(clock() - begun, 1)
        write_result(out, document)

    at_once = max((check.seconds for check in checks), default=0)
    total = at_once + sum(part.seconds for part in parts)
    with tqdm(total=total, unit="s", bar_format="{l_bar}{bar}| {postfix}") as bar:
        bar.set_postfix_str(f"{len(checks)} checks at once, about {at_once:.0f} s")
        for name, found in checked(checks):
            keep(name, found)
        bar.update(at_once)
        for part in parts:
            before, left = clock(), seconds - (clock() - begun)
            bar.set_postfix_str(f"{part.name}, about {part.seconds:.0f} s; at most {left / 60:.0f} min to go")
            if part.needs is not None and document["parts"].get(part.needs, {}).get("status") != "done":
                found = {"status": "left out", "reason": f"not done: {part.needs}"}
            elif part.seconds > left:
                found = {"status": "left out", "reason": f"{left:.0f} s were left"}
            else:
                found = outcome(part)
            keep(part.name, {**found, "seconds": round(clock() - before, 1)})
            bar.update(part.seconds)
    return document


def problems(document: dict[str, Any]) -> str:
    """Return the wrong or failed parts in one line, empty if there are none."""
    return "; ".join(
        f"{name}: {part['status']}, {part['reason']}"
        for name, part in document["parts"].items()
        if part["status"] in ("wrong", "failed")
    )
