"""Limits on the input of a filter, and checks of it. They raise InvalidInput with the name of the invalid field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from rfa.data.durations import SECONDS, duration
from rfa.runtime.choices import Mode
from rfa.runtime.errors import InvalidInput

Observation = Sequence[float | None] | None

# Maximum number of observations in attention mode, which stores a row for each and reads all rows at every step.
MAX_ATTENTION = 1024
LARGEST_TIME = 1e15
LARGEST_SEED = 2**64 - 1
MOST_LEVELS = 16
MOST_HORIZONS = 256
LARGEST_HORIZON = 1e9
MOST_SAMPLES = 1024  # per step
# The squares of observations must be within the range of float32.
LARGEST_OBSERVATION = 1e12
MOST_COMPONENTS = 4096
# Maximum number of columns whose future values are known.
MOST_COVARIATES = 16
LEAST_NOISE, MOST_NOISE = 1e-6, 1e6
# For the next larger level, (1 + level) / 2 rounds to 1, whose normal quantile is infinite.
HIGHEST_LEVEL = 1 - 2**-52


def check_size(name: str, observation: Sequence[float | None] | np.ndarray, size: int, model: str) -> None:
    """Check that an observation has the size that the model requires.

    Args:
        name: Field of the observation, for the message.
        observation: Values of the components.
        size: Number of components of the model.
        model: Name of the model, for the message.

    Raises:
        InvalidInput: If the size is wrong.
    """
    if len(observation) != size:
        raise InvalidInput(
            f"{name} has {len(observation)} values, but model {model!r} expects {size}",
            param=name,
            code="shape_mismatch",
        )


def as_array(observations: Sequence[Observation], size: int, model: str) -> np.ndarray:
    """Convert observations to an array `[N, size]`. An observation is None or has `size` values, each of which may be
    None. Missing values become NaN."""
    for i, row in enumerate(observations):
        if row is not None and len(row) != size:
            check_size(f"observations[{i}]", row, size, model)
    nothing = [None] * size
    return np.array([nothing if row is None else row for row in observations], np.float64).reshape(-1, size)


def input_rows(name: str, rows: Sequence[Sequence[float] | None], size: int, model: str) -> np.ndarray:
    """Convert inputs at each observation to an array `[N, size]`.

    Args:
        name: Field of the inputs, for messages.
        rows: Inputs at each observation: `size` numbers, or None for 0.
        size: Number of inputs of the model.
        model: Name of the model, for messages.

    Raises:
        InvalidInput: If the size of a row is wrong.
    """
    for i, row in enumerate(rows):
        if row is not None:
            check_size(f"{name}[{i}]", row, size, model)
    nothing = [0.0] * size
    return np.array([nothing if row is None else row for row in rows], np.float64).reshape(-1, size)


def without_bias(observations: np.ndarray, bias: Sequence[Sequence[float] | None], model: str) -> np.ndarray:
    """Return observations `[N, size]` minus the sensor's bias.

    Raises:
        InvalidInput: If a difference exceeds the limit for an observation.
    """
    found = observations - input_rows("bias", bias, observations.shape[1], model)
    for i in np.flatnonzero((np.abs(found) > LARGEST_OBSERVATION).any(axis=1))[:1].tolist():
        raise bias_out_of_range(f"bias[{i}]")
    return found


def bias_out_of_range(param: str) -> InvalidInput:
    """Return the error for a bias whose subtraction moves an observation beyond the limit."""
    return _error(param, f"must not move the observation to a magnitude above {LARGEST_OBSERVATION:g}")


def from_columns(columns: Mapping[str, Sequence[float | None]], size: int, model: str) -> np.ndarray:
    """Convert columns, one per component, to an array `[N, size]`. Missing values become NaN."""
    if len(columns) != size:
        raise InvalidInput(
            f"values has {len(columns)} columns, but model {model!r} expects {size}",
            param="values",
            code="shape_mismatch",
        )
    return np.array(list(columns.values()), np.float64).T.copy()


def check_observations(values: np.ndarray, size: int, model: str) -> None:
    """Check that observations `[N, size]` are finite or NaN and do not exceed the limit."""
    if not len(values):
        message = "observations must not be empty; pass at least one observation"
        raise InvalidInput(message, param="observations", code="empty")
    if values.shape[1:] != (size,):
        check_size("observations[0]", values[0], size, model)
    for i, j in np.argwhere(np.abs(values) > LARGEST_OBSERVATION)[:1].tolist():
        raise _error(
            f"observations[{i}][{j}]",
            f"must be finite and of magnitude at most {LARGEST_OBSERVATION:g}, got {values[i, j]:g}",
        )


def _error(param: str, expected: str, code: str = "out_of_range") -> InvalidInput:
    return InvalidInput(f"{param} {expected}", param=param, code=code)


def check_times(times: np.ndarray, length: int, previous: float) -> None:
    """Check that there is one finite time per observation and that times do not decrease.

    Args:
        times: Times of the observations.
        length: Number of observations.
        previous: Time of the last observation in the state.

    Raises:
        InvalidInput: If a check fails. The message names the time.
    """
    if len(times) != length:
        raise _error(
            "times", f"has {len(times)} values, but observations has {length}; pass one time per observation",
            "shape_mismatch",
        )  # fmt: skip
    is_sorted = np.diff(times, prepend=previous) >= 0
    for i in np.flatnonzero(~(np.isfinite(times) & is_sorted))[:1].tolist():
        if not math.isfinite(times[i]):
            raise _error(f"times[{i}]", "must be finite", "not_finite")
        before = times[i - 1] if i else previous
        raise _error(
            f"times[{i}]", f"must not be before the previous time, {before:.12g}, got {times[i]:.12g}", "not_sorted"
        )


def check_noise(noise: Sequence[float | None] | None, length: int) -> np.ndarray:
    """Return the factors on the noise, `[N]`. The default is 1."""
    if noise is None:
        return np.ones(length)
    if len(noise) != length:
        raise _error(
            "noise", f"has {len(noise)} values, but observations has {length}; pass one factor per observation",
            "shape_mismatch",
        )  # fmt: skip
    for i, scale in enumerate(noise):
        if scale is not None and not LEAST_NOISE <= scale <= MOST_NOISE:
            raise _error(f"noise[{i}]", f"must be between {LEAST_NOISE:g} and {MOST_NOISE:g}, got {scale:g}")
    return np.array([1.0 if scale is None else scale for scale in noise], np.float64)


def level_name(level: float) -> str:
    """Return the name of the interval of a level, such as "0.9". It is the shortest decimal that equals the level."""
    return repr(float(level))


def out_of_range(field: str, model: str) -> InvalidInput:
    """Return the error for an observation with which the results of a filter are not finite."""
    return _error(
        field,
        f"leads to results that model {model!r} cannot represent; send an observation closer to the previous one, a "
        "noise closer to 1, a time closer to the previous time, or a shorter horizon",
    )


def check_readout(levels: Sequence[float], horizon: Sequence[float], samples: int) -> None:
    """Check that levels are in (0, 1) and unique, and that horizons and samples are valid. Levels must be unique
    because they name intervals."""
    for i, level in enumerate(levels):
        if not 0 < level < 1:
            raise _error(f"levels[{i}]", f"must be between 0 and 1, got {level:g}")
        if level > HIGHEST_LEVEL:
            raise _error(f"levels[{i}]", f"must be at most {HIGHEST_LEVEL!r}, got {level!r}")
        if level in levels[:i]:
            raise _error(f"levels[{i}]", "is a duplicate; specify each level only once", "duplicate")
    for i, distance in enumerate(horizon):
        if not 0 <= distance <= 1e30:
            raise _error(f"horizon[{i}]", f"must be >= 0 and finite, got {distance:g}")
    if samples < 0:
        raise _error("samples", f"must be >= 0, got {samples}")


def value_range(
    low: float | None, high: float | None, names: tuple[str, str] = ("range[0]", "range[1]")
) -> tuple[float, float]:
    """Return the lower and the upper limit of a range of values. A missing limit is infinite.

    Args:
        low, high: Limits. None means no limit.
        names: Names of the limits, for messages.

    Raises:
        InvalidInput: If a limit is too large, or the first one is not below the second.
    """
    for name, limit in zip(names, (low, high), strict=True):
        if limit is not None and not abs(limit) <= LARGEST_OBSERVATION:
            raise InvalidInput(
                f"{name} must be of magnitude at most {LARGEST_OBSERVATION:g}, got {limit:g}",
                param="range",
                code="out_of_range",
            )
    if low is not None and high is not None and low >= high:
        message = f"{names[0]} must be below {names[1]}, got {low:.12g} and {high:.12g}"
        raise InvalidInput(message, param="range", code="out_of_range")
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def check_mode(mode: str, *, continues: bool, length: int) -> None:
    """Check the mode. Attention mode is valid only without a state and for at most MAX_ATTENTION observations."""
    if mode not in get_args(Mode):
        raise _error("mode", f"must be 'recurrent' or 'attention', got {mode!r}", "unknown_mode")
    if mode == "attention" and continues:
        raise InvalidInput("mode must be 'recurrent' to continue a state", param="mode", code="state_needs_recurrent")
    if mode == "attention" and length > MAX_ATTENTION:
        raise InvalidInput(
            f"attention mode supports at most {MAX_ATTENTION} observations, got {length}",
            param="observations",
            code="too_long",
        )


def check_lag(lag: int | None, *, smooth: bool) -> None:
    """Check the number of later observations that a smoothed state depends on. It requires smoothing."""
    if lag is not None and (lag < 0 or not smooth):
        raise _error("lag", f"must be >= 0 and requires smoothing, got {lag}")


def window_of(window: Any) -> float:
    """Return the length of a window in the unit of the times.

    Args:
        window: Number above 0 in the unit of the times. If times are in seconds, also a duration such as "5min".

    Raises:
        InvalidInput: If the value is neither.
    """
    number, unit = (duration(window) or (0.0, None)) if isinstance(window, str) else (window, "s")
    if isinstance(number, int | float) and not isinstance(number, bool) and unit is not None:
        length = number * SECONDS[unit]
        if 0 < length <= LARGEST_HORIZON:
            return float(length)
    message = 'late.window must be a number above 0 in the unit of the times, or a duration such as "5min"'
    raise InvalidInput(message, param="late.window", code="invalid_window")
