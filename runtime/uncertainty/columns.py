"""What is told about a series, as columns by name.

Models of any numbers tell a column that has shown nothing as 0 with a deviation of UNKNOWN, for a step has a number for
each component. A column may have none, and there it has none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np

from rfa.runtime.filters.auto_numba import UNKNOWN_VARIANCE
from rfa.runtime.outputs import FilterStep, SmoothedStep
from rfa.runtime.uncertainty.interface import Ahead
from rfa.runtime.uncertainty.steps import Steps

Array = np.ndarray
# Names of a step's numbers, and of its numbers for each component.
ONE = ("precision", "confidence", "weight", "nis", "anomaly", "alarm")
EACH = ("mean", "std", "innovation")
UNKNOWN: Final = math.sqrt(UNKNOWN_VARIANCE)


class Columns:
    """Collects what is told about a series, and gives it by column; NaN is what there is not.

    Args:
        names: of the components.
        fields: that are wanted; None is all.
        horizon: of the forecasts.
    """

    def __init__(self, names: Sequence[str], fields: Collection[str] | None, horizon: Sequence[float]) -> None:
        self._names = tuple(names)
        self._horizon = horizon
        self._fields = fields
        self._parts: dict[str, list[Array]] = {}

    def add(self, told: Steps | FilterStep) -> None:
        """What is told about the next observations."""
        for name, part in self._of_steps(told) if isinstance(told, Steps) else self._of_reply(told):
            self._parts.setdefault(name, []).append(part)

    def add_smoothed(self, steps: Sequence[SmoothedStep]) -> None:
        """The states given all observations."""
        for what in ("mean", "std"):
            values = np.array([getattr(step, what) for step in steps], np.float64).reshape(-1, len(self._names))
            for name, column in zip(self._names, values.T, strict=True):
                self._parts[f"smoothed.{what}.{name}"] = [column]

    def arrays(self) -> dict[str, Array]:
        """Every column."""
        return {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in self._parts.items()}

    def ahead(self, found: Ahead, levels: Sequence[str]) -> dict[str, Array]:
        """What comes after the last observation, in columns of their own."""
        of_all = (
            self._each("mean", found.moments[:, 0]), self._each("std", found.moments[:, 1]),
            self._bands("", levels, found.bands),
        )  # fmt: skip
        return {"t": found.times, **dict(itertools.chain(*of_all))}

    def _wants(self, field: str) -> bool:
        return self._fields is None or field in self._fields

    def _of_steps(self, steps: Steps) -> Iterator[tuple[str, Array]]:
        told = steps.told
        yield "index", told.position
        yield "t", steps.times
        for field in filter(self._wants, ONE):
            yield field, getattr(told, field)
        is_unknown = (told.std == UNKNOWN) & (told.mean == 0)
        for field in filter(self._wants, EACH):
            yield from self._each(field, _known(getattr(told, field), is_unknown))
        if self._wants("interval"):
            yield from self._bands("", steps.readout.names, _known(told.interval, is_unknown[:, None, :, None]))
        if self._wants("forecast"):
            moments, bands = (
                _known(told.moments, is_unknown[:, None, None]), _known(told.bands, is_unknown[:, None, None, :, None])
            )  # fmt: skip
            for h, lead in enumerate(self._horizon):
                yield from self._each(f"forecast.{lead!r}.mean", moments[:, h, 0])
                yield from self._each(f"forecast.{lead!r}.std", moments[:, h, 1])
                yield from self._bands(f"forecast.{lead!r}.", steps.readout.names, bands[:, h])

    def _of_reply(self, step: FilterStep) -> Iterator[tuple[str, Array]]:
        yield "index", np.array([step.index])
        yield "t", np.array([step.t])
        for field in filter(self._wants, ONE):
            yield field, _numbers([getattr(step, field)])
        for field in filter(self._wants, EACH):
            value = getattr(step, field)
            yield from self._each(field, _numbers([[None] * len(self._names) if value is None else value]))
        if self._wants("interval"):
            yield from self._named_bands("", step.interval)
        if self._wants("forecast"):
            for horizon, point in zip(self._horizon, step.forecast, strict=False):  # the rest is but followed
                lead = f"forecast.{horizon!r}"
                yield from self._each(f"{lead}.mean", np.array([point.mean]))
                yield from self._each(f"{lead}.std", np.array([point.std]))
                yield from self._named_bands(f"{lead}.", point.interval)

    def _each(self, what: str, values: Array) -> Iterator[tuple[str, Array]]:
        """values `[rows, P]`."""
        for a, name in enumerate(self._names):
            yield f"{what}.{name}", values[:, a]

    def _bands(self, before: str, levels: Sequence[str], bands: Array) -> Iterator[tuple[str, Array]]:
        """bands `[rows, levels, P, 2]`."""
        for i, level in enumerate(levels):
            yield from self._each(f"{before}lower.{level}", bands[:, i, :, 0])
            yield from self._each(f"{before}upper.{level}", bands[:, i, :, 1])

    def _named_bands(self, before: str, intervals: dict[str, Any]) -> Iterator[tuple[str, Array]]:
        yield from self._bands(before, list(intervals), np.array([list(intervals.values())], np.float64))


def _known(values: Array, is_unknown: Array) -> Array:
    """The values where something is known; NaN is of what is not."""
    return np.where(is_unknown, np.nan, values) if is_unknown.any() else values


def _numbers(values: list[Any]) -> Array:
    return np.array(values, np.float64)
