"""`rfa gpu-check`: what to run first on a GPU. Everything right, then how fast; one file to send back.

The parts are the benches of the kernels and of decoding, each of which checks before it times. First the kernels are
checked at one length of every width and nothing is timed, so that what is wrong is known within minutes; then come the
timings, what matters most before the rest. A part begins only if its estimate fits in what is left of LONGEST; what is
left out is named. The estimates are guesses until a GPU has run them.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tqdm import tqdm

from rfa.bench.decode_gpu import run_decode_gpu
from rfa.bench.gpu import gpu_hardware, require_gpu
from rfa.bench.kernel import Measured
from rfa.bench.kernel_attention import LENGTHS, measure_attention, measure_memory
from rfa.bench.kernel_slots import measure_slots
from rfa.bench.kernel_training import measure_training
from rfa.bench.kernel_truth import WrongResultError
from rfa.bench.paired import EventTimer
from rfa.bench.prompts_gpu import run_prompts_gpu
from rfa.bench.series_gpu import run_series_gpu
from rfa.measured import origin, write_result

# Seconds of all parts together.
LONGEST: Final = 25 * 60.0
SHORT, LONG = LENGTHS[0], LENGTHS[-1]


class GpuCheckError(ValueError):
    """Something computed is wrong, or a part failed."""


@dataclass(frozen=True)
class Part:
    """A bench as it is run here.

    Attributes:
        seconds: an estimate.
        run: gives what the bench writes down.
    """

    name: str
    seconds: float
    run: Callable[[], dict[str, Any]]


def untimed(call: Callable[[], object]) -> float:
    """In the place of a timer, where only what is computed matters."""
    return 1.0


def together(measured: Iterable[Measured]) -> dict[str, Any]:
    """Rows and bars of all shapes."""
    found = list(measured)
    return {
        "rows": [row for rows, _ in found for row in rows],
        "bars": [bar.to_dict() for _, bars in found for bar in bars],
    }


def checked(measured: Iterable[Measured]) -> dict[str, Any]:
    """Of rows that were not timed their errors, of ours and of the rivals' that were right."""
    shown = ("measure", "implementation", "config", "length", "width", "dtype", "pass", "errors", "failed")
    rows = [row for rows, _ in measured for row in rows]
    return {"rows": [{name: row[name] for name in shown if name in row} for row in rows]}


PARTS: Final[Sequence[Part]] = (
    Part("attention is right", 240, lambda: checked(measure_attention(untimed, lengths=(SHORT,)))),
    Part("slots are right", 60, lambda: checked([measure_slots(untimed)])),
    Part("decoding", 150, run_decode_gpu),
    Part("prompts", 90, run_prompts_gpu),
    Part("long series", 60, run_series_gpu),
    Part(f"attention, {SHORT:,} tokens", 240, lambda: together(measure_attention(EventTimer(), lengths=(SHORT,)))),
    Part(f"attention, {LONG:,} tokens", 240, lambda: together(measure_attention(EventTimer(), lengths=(LONG,)))),
    Part("slots", 90, lambda: together([measure_slots(EventTimer())])),
    Part("memory", 60, lambda: together([measure_memory(EventTimer())])),
    Part("training", 240, lambda: together([measure_training(EventTimer(repeats=5, is_flushing=False))])),
)  # fmt: skip


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


def run_gpu_check(
    out: Path, *, parts: Sequence[Part] = PARTS, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Run the parts, and write after each, so that an interrupted run leaves what it has.

    Raises:
        NoGpuError: there is none.
    """
    device = require_gpu()
    document: dict[str, Any] = {
        **origin("rfa gpu-check"), "hardware": gpu_hardware(device), "longest_seconds": LONGEST, "parts": {},
    }  # fmt: skip
    begun = clock()
    with tqdm(total=sum(part.seconds for part in parts), unit="s", bar_format="{l_bar}{bar}| {postfix}") as bar:
        for part in parts:
            before, left = clock(), LONGEST - (clock() - begun)
            bar.set_postfix_str(f"{part.name}, about {part.seconds:.0f} s; at most {left / 60:.0f} min to go")
            if part.seconds > left:
                found: dict[str, Any] = {"status": "left out", "reason": f"{left:.0f} s were left"}
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
