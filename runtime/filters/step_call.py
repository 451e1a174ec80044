"""A batch of observations with the buffers of its results, for filters that process it in several calls."""

from __future__ import annotations

from typing import NamedTuple

from rfa.runtime.filters.steps import Batch, Traced, allocate_trace
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import Readout


class StepCall(NamedTuple):
    """A batch, and the arrays for its outputs and its trace."""

    pool: StatePool
    batch: Batch
    readout: Readout
    outputs: StepOutputs
    trace: Traced

    @classmethod
    def allocate(
        cls, pool: StatePool, batch: Batch, readout: Readout, sizes: tuple[int, int], *, traced: bool
    ) -> StepCall:
        """Return a batch with newly allocated arrays for its outputs and its trace.

        Args:
            pool, batch: States of the streams, and their observations.
            readout: Options of the outputs.
            sizes: Numbers of components of an observation and of a state.
            traced: Whether to store a trace of the batch.
        """
        rows, (size, state_size) = len(batch.slots), sizes
        trace = allocate_trace(rows if traced else 0, size, state_size, 0, len(readout.horizon))
        return cls(pool, batch, readout, StepOutputs.allocate(rows, size, readout), trace)
