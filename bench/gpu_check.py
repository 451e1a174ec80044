"""`rfa gpu-check`: what to run first on a GPU. Everything right, then how fast; one file to send back.

First everything is checked and nothing is timed, so that what is wrong is known within a minute: all checks at once,
each in a process of its own, where they also compile what the timings run. Then come the timings one after the other,
the benches of decoding and of the kernels, what matters most before the rest. A part begins only if what it needs was
right, and if its estimate fits in what is left of the time; what is left out is named.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from tqdm import tqdm

from rfa.bench.decode_gpu import check_paper, measure_paper
from rfa.bench.gpu import gpu_hardware, require_gpu
from rfa.bench.kernel import Measured
from rfa.bench.kernel_attention import FLEX, LENGTHS, WIDTHS, check_attention, measure_attention, measure_memory
from rfa.bench.kernel_slots import check_slots, measure_slots
from rfa.bench.kernel_training import measure_training
from rfa.bench.kernel_truth import WrongResultError
from rfa.bench.paired import EventTimer
from rfa.bench.prompts_gpu import check_paper_prompts, measure_paper_prompts
from rfa.bench.series_gpu import check_packaged_series, run_series_gpu
from rfa.measured import origin, write_result

# Seconds of everything, unless another number is asked for.
LONGEST: Final = 25 * 60.0
SHORT, LONG = LENGTHS[0], LENGTHS[-1]
DECODING_IS_RIGHT, PROMPTS_ARE_RIGHT = "decoding is right", "prompts are right"


class GpuCheckError(ValueError):
    """Something computed is wrong, or a part failed."""


@dataclass(frozen=True)
class Part:
    """A bench as it is run here.

    Attributes:
        seconds: an estimate from an H200; of a check, those of all of them, which are made at once.
        run: gives what the bench writes down.
        needs: the check without which its times would mean nothing; None: it checks by itself what it times.
    """

    name: str
    seconds: float
    run: Callable[[], dict[str, Any]]
    needs: str | None = None


def together(measured: Iterable[Measured]) -> dict[str, Any]:
    """Rows and bars of all shapes."""
    found = list(measured)
    return {
        "rows": [row for rows, _ in found for row in rows],
        "bars": [bar.to_dict() for _, bars in found for bar in bars],
    }


# Rivals that are compiled are checked too, and may fail: a timing has no time to compile them.
CHECKS: Final[Sequence[Part]] = (
    *(Part(f"attention is right, {width} reals", 80, partial(check_attention, width, SHORT)) for width in WIDTHS),
    Part("slots are right", 80, check_slots),
    Part(DECODING_IS_RIGHT, 80, check_paper),
    Part(PROMPTS_ARE_RIGHT, 80, check_paper_prompts),
    Part("long series are right", 80, check_packaged_series),
    *(
        Part(f"{FLEX} compiles, {width} reals, {length:,} tokens", 80, partial(check_attention, width, length, (FLEX,)))
        for length in (SHORT, LONG)
        for width in WIDTHS
    ),
)
PARTS: Final[Sequence[Part]] = (
    Part("decoding", 20, measure_paper, needs=DECODING_IS_RIGHT),
    Part("prompts", 10, measure_paper_prompts, needs=PROMPTS_ARE_RIGHT),
    Part(f"attention, {SHORT:,} tokens", 35, lambda: together(measure_attention(EventTimer(), lengths=(SHORT,)))),
    Part(f"attention, {LONG:,} tokens", 45, lambda: together(measure_attention(EventTimer(), lengths=(LONG,)))),
    Part("long series", 25, run_series_gpu),
    Part("training", 25, lambda: together([measure_training(EventTimer(repeats=5, is_flushing=False))])),
    Part("slots", 40, lambda: together([measure_slots(EventTimer())])),
    Part("memory", 20, lambda: together([measure_memory(EventTimer())])),
)


def outcome(part: Part) -> dict[str, Any]:
    """Run a part: what it found, or what became of it."""
    try:
        return {"status": "done", **part.run()}
    except WrongResultError as error:
        return {"status": "wrong", "reason": str(error)}
    except Exception as error:  # the parts after it are worth having
        lines = traceback.format_exception(error)
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}".split("\n")[0], "trace": lines[-12:]}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def timed_outcome(part: Part) -> dict[str, Any]:
    """`outcome`, and the seconds that it took."""
    begun = time.monotonic()
    return {**outcome(part), "seconds": round(time.monotonic() - begun, 1)}


def checked(checks: Sequence[Part]) -> dict[str, dict[str, Any]]:
    """What became of each check, as many of them at once as there are cores."""
    if not checks:
        return {}
    cores = os.cpu_count() or 1
    workers = min(len(checks), cores)
    # What runs on the processor there must not have each process take all of its cores.
    threads = torch.set_num_threads, (cores // workers,)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), *threads) as processes:
        return dict(zip((check.name for check in checks), processes.map(timed_outcome, checks), strict=True))


def run_gpu_check(
    out: Path, *, seconds: float = LONGEST, checks: Sequence[Part] = CHECKS, parts: Sequence[Part] = PARTS,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:  # fmt: skip
    """Make the checks, run the parts, and write after each, so that an interrupted run leaves what it has.

    Args:
        seconds: a part is left out that may not end within so many.

    Raises:
        NoGpuError: there is none.
    """
    device = require_gpu()
    document = origin("rfa gpu-check")
    document |= {"hardware": document["hardware"] | gpu_hardware(device), "longest_seconds": seconds, "parts": {}}
    begun = clock()
    at_once = max((check.seconds for check in checks), default=0)
    total = at_once + sum(part.seconds for part in parts)
    with tqdm(total=total, unit="s", bar_format="{l_bar}{bar}| {postfix}") as bar:
        bar.set_postfix_str(f"{len(checks)} checks at once, about {at_once:.0f} s")
        document["parts"] = checked(checks)
        write_result(out, document)
        bar.update(at_once)
        for part in parts:
            before, left = clock(), seconds - (clock() - begun)
            bar.set_postfix_str(f"{part.name}, about {part.seconds:.0f} s; at most {left / 60:.0f} min to go")
            if part.needs is not None and document["parts"].get(part.needs, {}).get("status") != "done":
                found: dict[str, Any] = {"status": "left out", "reason": f"not done: {part.needs}"}
            elif part.seconds > left:
                found = {"status": "left out", "reason": f"{left:.0f} s were left"}
            else:
                found = outcome(part)
            document["parts"][part.name] = {**found, "seconds": round(clock() - before, 1)}
            document["seconds"] = round(clock() - begun, 1)
            write_result(out, document)
            bar.update(part.seconds)
    return document


def lines(document: dict[str, Any]) -> list[str]:
    """What became of each part, and its bars."""
    said = []
    for name, part in document["parts"].items():
        said.append(
            f"{name}: {part['status']} after {part['seconds']:.0f} s"
            + (f", {part['reason']}" if "reason" in part else "")
        )
        said += [
            f"  {bar['name']}: {'not measured' if bar['actual'] is None else format(bar['actual'], 'g')} "
            f"({bar['kind']} {bar['bar']:g}) {'met' if bar['met'] else 'MISSED'}"
            for bar in part.get("bars", ())
        ]
    return said


def problems(document: dict[str, Any]) -> str:
    """The parts that are wrong or failed, in a line; empty where none is."""
    return "; ".join(
        f"{name}: {part['status']}, {part['reason']}"
        for name, part in document["parts"].items()
        if part["status"] in ("wrong", "failed")
    )
