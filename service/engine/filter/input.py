"""What a filter can be given: checks that name the field at fault."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Observation = Sequence[float | None] | None
Mode = Literal["recurrent", "attention"]

# Attention keeps one row per observation and looks at all of them at every step.
MAX_ATTENTION = 1024
# Squares of the values must fit into float32.
LARGEST_VALUE = 1e15
# An interval ends at the normal's quantile of (1 + level) / 2: at the next larger level that is 1 to a float.
HIGHEST_LEVEL = 1 - 2**-52


class FilterInputError(ValueError):
    """A value that this filter cannot take; `param` names the field."""

    def __init__(self, message: str, param: str, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def check_observations(observations: Sequence[Observation], size: int, model: str) -> None:
    """Every observation null or `size` numbers that are finite or null."""
    if not len(observations):
        raise FilterInputError("observations must not be empty", "observations", "empty")
    for i, row in enumerate(observations):
        if row is None:
            continue
        name = f"observations[{i}]"
        if len(row) != size:
            raise FilterInputError(
                f"{name} has {len(row)} values, model {model!r} takes {size}", name, "shape_mismatch"
            )
        for j, value in enumerate(row):
            if value is not None and not abs(value) <= LARGEST_VALUE:
                raise FilterInputError(
                    f"{name}[{j}] must be finite and at most {LARGEST_VALUE:g} in size", f"{name}[{j}]", "out_of_range"
                )


def check_times(times: Sequence[float], length: int, previous: float) -> None:
    """One finite time per observation, none before the one ahead of it; `previous` is the time of the state."""
    if len(times) != length:
        raise FilterInputError(f"times has {len(times)} values, observations {length}", "times", "shape_mismatch")
    for i, t in enumerate(times):
        if not math.isfinite(t):
            raise FilterInputError(f"times[{i}] must be finite", f"times[{i}]", "not_finite")
        if t < previous:
            raise FilterInputError(
                f"times[{i}] lies before the time ahead of it; times must not decrease", f"times[{i}]", "not_sorted"
            )
        previous = t


def check_noise(noise: Sequence[float | None] | None, length: int) -> list[float]:
    """The factors on the noise, 1 where nothing is said."""
    if noise is None:
        return [1.0] * length
    if len(noise) != length:
        raise FilterInputError(f"noise has {len(noise)} values, observations {length}", "noise", "shape_mismatch")
    for i, scale in enumerate(noise):
        if scale is not None and not 1e-6 <= scale <= 1e6:
            raise FilterInputError(f"noise[{i}] must be between 1e-6 and 1e6", f"noise[{i}]", "out_of_range")
    return [1.0 if scale is None else float(scale) for scale in noise]


def level_name(level: float) -> str:
    """What the interval of a level is called: the shortest decimal that is this level and no other, such as "0.9"."""
    return repr(float(level))


def out_of_range(place: str, model: str) -> FilterInputError:
    """Refuses an observation at which the numbers of a filter leave the range of floats.

    Args:
        place: name of the field.
    """
    return FilterInputError(
        f"{place} takes model {model!r} out of the range of its numbers: it must lie nearer to what came before it, or "
        "its noise nearer to 1, or its time nearer to the time before it, or the horizon must be shorter",
        place,
        "out_of_range",
    )


def check_readout(levels: Sequence[float], horizon: Sequence[float], samples: int) -> None:
    """Levels inside (0, 1), each once, for they name intervals; forecasts into the future; a number of samples."""
    for i, level in enumerate(levels):
        if not 0 < level < 1:
            raise FilterInputError(f"levels[{i}] must lie between 0 and 1", f"levels[{i}]", "out_of_range")
        if level > HIGHEST_LEVEL:
            raise FilterInputError(f"levels[{i}] must be at most {HIGHEST_LEVEL!r}", f"levels[{i}]", "out_of_range")
        if level in levels[:i]:
            raise FilterInputError(f"levels[{i}] is there already; give each level once", f"levels[{i}]", "duplicate")
    for i, lead in enumerate(horizon):
        if not 0 <= lead <= 1e30:
            raise FilterInputError(f"horizon[{i}] must be >= 0 and finite", f"horizon[{i}]", "out_of_range")
    if samples < 0:
        raise FilterInputError("samples must be >= 0", "samples", "out_of_range")


def check_mode(mode: str, *, continues: bool, length: int) -> None:
    """A mode that there is, and attention only from a fresh start over not too many observations."""
    if mode not in ("recurrent", "attention"):
        raise FilterInputError("mode must be 'recurrent' or 'attention'", "mode", "unknown_mode")
    if mode == "attention" and continues:
        raise FilterInputError("a state continues in recurrent mode only", "mode", "state_needs_recurrent")
    if mode == "attention" and length > MAX_ATTENTION:
        raise FilterInputError(
            f"attention mode takes at most {MAX_ATTENTION} observations, got {length}", "observations", "too_long"
        )


def check_lag(lag: int | None, *, smooth: bool) -> None:
    """A number of observations to wait for, of smoothing only."""
    if lag is not None and (lag < 0 or not smooth):
        raise FilterInputError("lag must be >= 0, and is of smoothing only", "lag", "out_of_range")
