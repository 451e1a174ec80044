"""`rfa bench kernel`: check the fused kernels on a GPU, then time them.

Parts can be measured separately: rows of the same commit and machine are kept unless measured again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from rfa.benchmarks.gpu.device import gpu_hardware, require_gpu
from rfa.benchmarks.gpu.paired import Bar, EventTimer
from rfa.benchmarks.kernels.attention import LENGTHS, WIDTHS, measure_attention, measure_memory
from rfa.benchmarks.kernels.slots import measure_slots
from rfa.benchmarks.kernels.training import measure_training
from rfa.measured import git_commit, write_result

Part = Literal["attention", "memory", "slots", "training"]
PARTS: tuple[Part, ...] = get_args(Part)
Measured = tuple[list[dict[str, Any]], list[Bar]]
# Fields that distinguish rows.
KEY = ("measure", "implementation", "config", "batch", "length", "heads", "width", "dtype", "pass")


def selected(
    parts: Sequence[str] | None, widths: Sequence[int] | None, lengths: Sequence[int] | None
) -> tuple[list[Part], list[int], list[int]]:
    """Check and return the requested names; an empty request selects all."""
    for name, given, stored in (("part", parts, PARTS), ("width", widths, WIDTHS), ("length", lengths, LENGTHS)):
        for value in given or ():
            if value not in stored:
                raise ValueError(f"{name} must be one of {', '.join(map(str, stored))}, got {value!r}")
    return [part for part in PARTS if part in (parts or PARTS)], list(widths or WIDTHS), list(lengths or LENGTHS)


def measure(parts: Sequence[Part], widths: Sequence[int], lengths: Sequence[int]) -> Iterable[Measured]:
    """Yield rows and requirements as they are measured."""
    if "attention" in parts:
        yield from measure_attention(EventTimer(), widths=widths, lengths=lengths)
    if "memory" in parts:
        yield measure_memory(EventTimer())
    if "slots" in parts:
        yield measure_slots(EventTimer())
    if "training" in parts:
        # The host takes part in a step, so the cache is not flushed.
        yield measure_training(EventTimer(repeats=5, is_flushing=False))


def run_kernel(
    out: Path, parts: Sequence[Part] = PARTS, widths: Sequence[int] = WIDTHS, lengths: Sequence[int] = LENGTHS
) -> dict[str, Any]:
    """Measure and write after every shape, so that an interrupted run keeps its results."""
    device = require_gpu()
    document = started({"commit": git_commit(), "hardware": gpu_hardware(device)}, out)
    for rows, bars in measure(parts, widths, lengths):
        document = merged(document, rows, [bar.to_dict() for bar in bars])
        write_result(out, document)
    return document


def started(provenance: dict[str, Any], out: Path) -> dict[str, Any]:
    """Return the document in `out` if it is of this commit, machine and day, otherwise an empty one."""
    if out.is_file():
        found: dict[str, Any] = json.loads(out.read_text())
        if all(found.get(name) == value for name, value in provenance.items()):
            return found
    return {**provenance, "rows": [], "bars": []}


def merged(document: dict[str, Any], rows: list[dict[str, Any]], bars: list[dict[str, Any]]) -> dict[str, Any]:
    """Replace the rows and requirements of the same name."""
    new_rows = {row_key(row) for row in rows}
    new_bars = {bar["name"] for bar in bars}
    return {
        **document,
        "rows": [row for row in document["rows"] if row_key(row) not in new_rows] + rows,
        "bars": [bar for bar in document["bars"] if bar["name"] not in new_bars] + bars,
    }


def row_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key of a row."""
    return tuple(row.get(name) for name in KEY)
