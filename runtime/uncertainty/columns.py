"""Outputs of a series as a mapping from names to columns.

Models for any series return the mean 0 and the deviation UNKNOWN for a component that has had no value yet. Here, such
numbers become NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np

from rfa.runtime.filters.auto_layout import UNKNOWN_VARIANCE
from rfa.runtime.outputs import FilterStep, SmoothedStep
from rfa.runtime.uncertainty.interface import Ahead
from rfa.runtime.uncertainty.steps import Steps

Array = np.ndarray
# Fields with one number per step, and with one number per component.
ONE = ("precision", "confidence", "weight", "nis", "anomaly", "alarm")
EACH = ("mean", "std", "innovation")
UNKNOWN: Final = math.sqrt(UNKNOWN_VARIANCE)


class Columns:
    """Collects the outputs of a series by column. Missing outputs are NaN.

    Args:
        names: Names of the components.
        fields: Fields to collect. None selects all fields.
        horizon: Horizons of the forecasts.
    """

    def __init__(self, names: Sequence[str], fields: Collection[str] | None, horizon: Sequence[float]) -> None:
        self._names = tuple(names)
        self._horizon = horizon
        self._fields = fields
        self._parts: dict[str, list[Array]] = {}

    def add(self, rows: Steps | FilterStep) -> None:
        """Add the outputs of the next observations."""
        for name, part in self._step_columns(rows) if isinstance(rows, Steps) else self._reply_columns(rows):
            self._parts.setdefault(name, []).append(part)

    def add_smoothed(self, steps: Sequence[SmoothedStep]) -> None:
        """Add the smoothed estimates of the next observations, which also use later observations."""
        for what in ("mean", "std"):
            values = np.array([getattr(step, what) for step in steps], np.float64).reshape(-1, len(self._names))
            for name, column in zip(self._names, values.T, strict=True):
                self._parts[f"smoothed.{what}.{name}"] = [column]

    def arrays(self) -> dict[str, Array]:
        """Return a mapping from names to all columns."""
        return {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in self._parts.items()}

    def ahead(self, found: Ahead, levels: Sequence[str]) -> dict[str, Array]:
        """Return a mapping from names to columns of the forecasts after the last observation. The column `t` contains
        their times."""
        groups = (
            self._each("mean", found.moments[:, 0]), self._each("median", found.moments[:, 2]),
            self._each("std", found.moments[:, 1]), self._bands("", levels, found.bands),
            self._weights("", found.experts, found.weights),
        )  # fmt: skip
        return {"t": found.times, **dict(itertools.chain(*groups))}

    def _has(self, field: str) -> bool:
        return self._fields is None or field in self._fields

    def _step_columns(self, steps: Steps) -> Iterator[tuple[str, Array]]:
        outputs = steps.outputs
        yield "index", outputs.position
        yield "t", steps.times
        for field in filter(self._has, ONE):
            yield field, getattr(outputs, field)
        is_unknown = (outputs.std == UNKNOWN) & (outputs.mean == 0)
        for field in filter(self._has, EACH):
            yield from self._each(field, _mask(getattr(outputs, field), is_unknown))
        if self._has("interval"):
            yield from self._bands("", steps.readout.names, _mask(outputs.interval, is_unknown[:, None, :, None]))
        if self._has("forecast"):
            moments = _mask(outputs.moments, is_unknown[:, None, None])
            bands = _mask(outputs.bands, is_unknown[:, None, None, :, None])
            for h, horizon in enumerate(self._horizon):
                yield from self._each(f"forecast.{horizon!r}.mean", moments[:, h, 0])
                yield from self._each(f"forecast.{horizon!r}.std", moments[:, h, 1])
                yield from self._bands(f"forecast.{horizon!r}.", steps.readout.names, bands[:, h])
        for h, horizon in enumerate(self._horizon):
            yield from self._weights(f"forecast.{horizon!r}.", steps.readout.experts, outputs.weights[:, h])

    def _reply_columns(self, step: FilterStep) -> Iterator[tuple[str, Array]]:
        yield "index", np.array([step.index])
        yield "t", np.array([step.t])
        for field in filter(self._has, ONE):
            yield field, _numbers([getattr(step, field)])
        for field in filter(self._has, EACH):
            value = getattr(step, field)
            yield from self._each(field, _numbers([[None] * len(self._names) if value is None else value]))
        if self._has("interval"):
            yield from self._named_bands("", step.interval)
        if self._has("forecast"):
            # Further horizons are only forecast so that their intervals adapt.
            for horizon, point in zip(self._horizon, step.forecast, strict=False):
                name = f"forecast.{horizon!r}"
                yield from self._each(f"{name}.mean", np.array([point.mean]))
                yield from self._each(f"{name}.std", np.array([point.std]))
                yield from self._named_bands(f"{name}.", point.interval)
        weights = getattr(step, "weights", None) or {}
        for h, horizon in enumerate(self._horizon):
            shares = np.array([[[shares[h][a] for shares in weights.values()] for a in range(len(self._names))]])
            yield from self._weights(f"forecast.{horizon!r}.", list(weights), shares)

    def _each(self, name: str, values: Array) -> Iterator[tuple[str, Array]]:
        """Yield the name and the content of each column of values `[rows, P]`."""
        for a, component in enumerate(self._names):
            yield f"{name}.{component}", values[:, a]

    def _weights(self, prefix: str, experts: Sequence[str], weights: Array) -> Iterator[tuple[str, Array]]:
        """Yield the name and the content of each column of weights `[rows, P, experts]`."""
        for k, expert in enumerate(experts):
            yield from self._each(f"{prefix}weight.{expert}", weights[..., k])

    def _bands(self, prefix: str, levels: Sequence[str], bands: Array) -> Iterator[tuple[str, Array]]:
        """Yield the name and the content of each column of bands `[rows, levels, P, 2]`."""
        for i, level in enumerate(levels):
            yield from self._each(f"{prefix}lower.{level}", bands[:, i, :, 0])
            yield from self._each(f"{prefix}upper.{level}", bands[:, i, :, 1])

    def _named_bands(self, prefix: str, intervals: dict[str, Any]) -> Iterator[tuple[str, Array]]:
        yield from self._bands(prefix, list(intervals), np.array([list(intervals.values())], np.float64))


def _mask(values: Array, is_unknown: Array) -> Array:
    """Return the values with NaN where they are unknown."""
    return np.where(is_unknown, np.nan, values) if is_unknown.any() else values


def _numbers(values: list[Any]) -> Array:
    return np.array(values, np.float64)
