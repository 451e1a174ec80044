"""Options for intervals, forecasts, alarms and samples. Their limits are the same as in the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rfa.data.clock import get_zone
from rfa.data.utc_offsets import UtcOffsets
from rfa.library.spans import Span, leads_of
from rfa.runtime.uncertainty.alarms import Alarm, alarm_of
from rfa.runtime.uncertainty.input import (
    LARGEST_HORIZON,
    LARGEST_SEED,
    MOST_HORIZONS,
    MOST_LEVELS,
    MOST_SAMPLES,
    value_range,
)
from rfa.runtime.uncertainty.interface import ReadoutOptions

LEVELS = (0.5, 0.9)
# A rate, or the fields of the server's `alarm`.
AlarmRule = float | str | Mapping[str, Any]


@dataclass(frozen=True)
class OutputOptions:
    """Outputs that a filter computes for each observation.

    Attributes:
        levels: Levels of the intervals.
        horizon: Horizons of the forecasts, in units of the times.
        alarm: Alarm options, with the names of the fields of `alarm` in `POST /filter`. If None, there are no alarms.
        samples: Number of samples of the state.
        limits: Lowest and highest possible value. None means no limit.
        weights: Whether forecasts contain the weights of the models in the mixture.
        tz: Time zone of the days and weeks that the model uses.
    """

    levels: tuple[float, ...]
    horizon: tuple[float, ...] = ()
    alarm: Mapping[str, Any] | None = None
    samples: int = 0
    limits: tuple[float | None, float | None] = (None, None)
    weights: bool = False
    tz: str = "UTC"

    @classmethod
    def of(
        cls,
        levels: Sequence[float],
        horizon: Sequence[float | Span] = (),
        alarm: AlarmRule | None = None,
        samples: int = 0,
        limits: Sequence[float | None] = (None, None),
        *,
        weights: bool = False,
        tz: str = "UTC",
    ) -> OutputOptions:
        """Check the values of options, and return them as an object. `alarm` may be a rate or the alarm options.

        Raises:
            ValueError: If an option is invalid. The message names the argument.
        """
        rule = alarm if alarm is None or isinstance(alarm, Mapping) else {"rate": alarm}
        low, high = limits
        options = cls(_numbers(levels), leads_of(horizon), rule, samples, (low, high), weights, tz)
        options.check()
        return options

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> OutputOptions:
        """Return the options from a dictionary that `document` returned.

        Raises:
            KeyError, TypeError, ValueError: If the dictionary is invalid.
        """
        names = ("levels", "horizon", "alarm", "samples")
        levels, horizon, rule, samples = (document[name] for name in names)
        limits, weights = document.get("limits", (None, None)), document.get("weights", False)
        return cls.of(levels, horizon, rule, samples, limits, weights=weights, tz=document.get("tz", "UTC"))

    def document(self) -> dict[str, Any]:
        """Return the options as a dictionary of JSON types."""
        return {**asdict(self), "levels": list(self.levels), "horizon": list(self.horizon)}

    def with_horizon(self, horizon: Sequence[float]) -> OutputOptions:
        """Return a copy of the options with other horizons."""
        return replace(self, horizon=tuple(horizon))

    @property
    def alarms(self) -> Alarm:
        """Alarm options in the form that the filter uses."""
        return alarm_of(self.alarm, self.tz)

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest possible value, in the form that the filter uses."""
        return value_range(*self.limits, ("minimum", "maximum"))

    @property
    def readout(self) -> ReadoutOptions:
        """Options of the outputs in the form that the filter uses."""
        utc_offsets = UtcOffsets.of_zone(self.tz)
        return ReadoutOptions(alarm=self.alarms, range=self.range, weights=self.weights, utc_offsets=utc_offsets)

    def check(self) -> None:
        """Check that the options are within their limits.

        Raises:
            ValueError: If an option is out of bounds. The message names the argument.
        """
        if not self.levels:
            raise ValueError("levels must not be empty; pass levels such as (0.5, 0.9)")
        for name, values, most, end in (
            ("levels", self.levels, MOST_LEVELS, "below 1"),
            ("horizon", self.horizon, MOST_HORIZONS, f"at most {LARGEST_HORIZON:g}"),
        ):
            if len(values) > most:
                raise ValueError(f"{name} accepts at most {most} values, got {len(values)}")
            for i, value in enumerate(values):
                is_inside = 0 < value < 1 if name == "levels" else 0 < value <= LARGEST_HORIZON
                if not is_inside:
                    raise ValueError(f"{name}[{i}] must be greater than 0 and {end}, got {value!r}")
        check_whole("samples", self.samples, MOST_SAMPLES)
        get_zone(self.tz)
        _ = self.readout


def check_whole(name: str, value: int, most: int) -> None:
    """Check that a value is an integer from 0 to `most`.

    Raises:
        ValueError: If the value is not such an integer. The message names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} must be an integer from 0 to {most}, got {value!r}")


def check_seed(seed: int) -> None:
    """Check that a random seed is an integer in the allowed range.

    Raises:
        ValueError: If the seed is not an integer from 0 to LARGEST_SEED.
    """
    check_whole("seed", seed, LARGEST_SEED)


def _numbers(levels: Sequence[float]) -> tuple[float, ...]:
    try:
        return tuple(float(level) for level in levels)
    except (TypeError, ValueError):
        raise ValueError(f"levels must be numbers between 0 and 1 such as (0.5, 0.9), got {levels!r}") from None


def ends(name: str, level: float) -> tuple[str, str]:
    """Return the column names of the lower and upper bound of an interval. For column x and level 0.9, they are
    `x_low90` and `x_high90`."""
    share = f"{100 * level:.12g}"
    return f"{name}_low{share}", f"{name}_high{share}"
