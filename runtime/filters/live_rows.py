"""Process live observations: one from each of many streams, whose requested outputs may differ.

If processing fails, all streams are restored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rfa.runtime.filters.steps import Batch
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.draws import state_samples
from rfa.runtime.uncertainty.interface import Row, Stepped
from rfa.runtime.uncertainty.steps import Readout, Steps, limit_outputs

if TYPE_CHECKING:
    from rfa.runtime.filters.filter import FilterRuntime


def advance(model: FilterRuntime, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
    """Process one observation per row.

    The rows must have been validated: their shapes, finite values and non-decreasing times.

    Returns:
        One result per row. None if the results of a row are not finite. Its stream is then unchanged.
    """
    slots = pool.rows([row.slot for row in rows])
    groups: dict[Readout, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.readout, []).append(i)
    found: list[Stepped | None] = [None] * len(rows)
    nothing, ready = [None] * model.observation_size, []
    for readout, members in groups.items():
        chosen = rows if len(groups) == 1 else [rows[i] for i in members]
        batch = Batch(
            slots if len(groups) == 1 else slots[members],
            np.array([row.t for row in chosen], np.float64),
            np.array([nothing if row.observation is None else row.observation for row in chosen], np.float64).reshape(
                len(chosen), model.observation_size
            ),
            np.array([row.noise for row in chosen], np.float64),
        )
        ready.append((readout, members, chosen, batch))
    # After a failure, all streams are restored, including those of earlier readouts.
    may_fail_late = len(ready) > 1 or any(readout.samples for readout in groups)
    before = {name: array[slots] for name, array in pool.arrays.items()} if may_fail_late else {}
    try:
        for readout, members, chosen, batch in ready:
            for i, result in zip(members, model.stepped(pool, batch, readout, chosen), strict=True):
                found[i] = result
    except Exception:
        for name, values in before.items():
            pool.arrays[name][slots] = values
        raise
    return found


def stepped(
    model: FilterRuntime, pool: StatePool, batch: Batch, readout: Readout, rows: Sequence[Row]
) -> Iterator[Stepped | None]:
    """Yield the results of `advance` for the rows of a batch. All rows have the same readout."""
    inputs = None
    if any(row.input is not None for row in rows):
        covariates = model.covariates * (1 + len(readout.horizon))
        nothing = [math.nan] * covariates if covariates else [0.0] * model.state_size
        inputs = np.array([nothing if row.input is None else row.input for row in rows], np.float64)
    outputs, trace = model.step(pool, batch, readout, inputs, traced=readout.samples > 0)
    limit_outputs(outputs, readout.options.range)
    steps = Steps(readout, batch.times, outputs, state_samples(readout, trace, outputs, [row.seed for row in rows]))
    likelihoods, replies = outputs.log_likelihood.tolist(), steps.replies(copies=len(rows) > 1)
    for is_good, *parts in zip(outputs.is_good.tolist(), replies, likelihoods, outputs.tally, strict=True):
        yield Stepped(*parts) if is_good else None
