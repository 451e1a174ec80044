"""Alarms: observations as rare on their stream as requested, and how many there were."""

from __future__ import annotations

import math
import re
from typing import Final, Literal, NamedTuple, get_args

from rfa.runtime.errors import InvalidInput
from rfa.runtime.outputs import AlarmChecks
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION

Direction = Literal["both", "up", "down"]
SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
# "1/day", "0.5/hour", "12 / week"; not 0, which would raise no alarm, not even for a range.
_ABOVE_ZERO: Final = r"0*[1-9][0-9]*(?:\.[0-9]+)?|0+\.0*[1-9][0-9]*"
RATE_PATTERN: Final = rf"^({_ABOVE_ZERO}) ?/ ?({'|'.join(SECONDS)})$"
# As a share of the observations.
LARGEST_RATE: Final = 0.5
MOST_QUIET: Final = 1_000_000
# Quantile of the normal for a 95 % interval.
_Z = 1.96


class Alarm(NamedTuple):
    """When an observation is an alarm.

    Attributes:
        rate, per_time: the expected alarms per observation and per unit of time since the one before; both 0: none.
        direction: 1 above the forecast, -1 below, 0 either.
        deviation: least distance from the forecast, in units of the observation.
        low, high: an observation outside is an alarm, however frequent.
        quiet: for so many observations after an alarm, only much rarer ones are alarms.
    """

    rate: float = 0.0
    per_time: float = 0.0
    direction: int = 0
    deviation: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    quiet: int = 0


NEVER: Final = Alarm()


def alarm(
    rate: float | str,
    *,
    direction: Direction = "both",
    min_deviation: float = 0.0,
    within: tuple[float | None, float | None] = (None, None),
    quiet: int = 0,
) -> Alarm:
    """An alarm at a rate: a share of the observations, or a text that matches RATE_PATTERN, for times in seconds.

    Args:
        within: every observation outside these limits is an alarm.

    Raises:
        InvalidInput: If a field of `alarm` is invalid; the message names it.
    """
    _check(rate, direction, min_deviation, within, quiet)
    per_time = 0.0
    if isinstance(rate, str):
        count, unit = rate.replace(" ", "").split("/")
        rate, per_time = 0.0, float(count) / SECONDS[unit]
    low, high = within
    return Alarm(
        float(rate), per_time, {"both": 0, "up": 1, "down": -1}[direction], float(min_deviation),
        -math.inf if low is None else float(low), math.inf if high is None else float(high), quiet,
    )  # fmt: skip


def _check(
    rate: float | str, direction: str, min_deviation: float, within: tuple[float | None, float | None], quiet: int
) -> None:
    if isinstance(rate, str):
        is_rate = re.fullmatch(RATE_PATTERN, rate) is not None
    else:
        is_rate = isinstance(rate, int | float) and 0 < rate <= LARGEST_RATE
    low, high = within if len(within) == 2 else (math.nan, math.nan)
    limits = [limit for limit in (low, high) if limit is not None]
    checks = {
        "rate": (is_rate, 'be a share of the observations, at most 0.5, or a number per time such as "1/day"'),
        "direction": (direction in get_args(Direction), "be up, down or both"),
        "min_deviation": (0 <= min_deviation <= LARGEST_OBSERVATION, f"be from 0 to {LARGEST_OBSERVATION:g}"),
        "range": (
            limits == sorted(limits) and all(abs(limit) <= LARGEST_OBSERVATION for limit in limits),
            "be the lower limit and the upper one",
        ),
        "quiet": (isinstance(quiet, int) and 0 <= quiet <= MOST_QUIET, f"be a whole number from 0 to {MOST_QUIET}"),
    }
    for field, (is_good, expected) in checks.items():
        if not is_good:
            raise InvalidInput(f"alarm.{field} must {expected}", param=f"alarm.{field}", code="out_of_range")


def is_most(rule: Alarm, step: float) -> bool:
    """Whether a rate per time, at this typical lag, exceeds the largest share of rows."""
    return rule.per_time * step > LARGEST_RATE


def count_alarms(observations: float, expected: float, raised: float) -> AlarmChecks | None:
    """Rate of alarms with its Wilson interval; None without observations that could be alarms."""
    if not observations:
        return None
    share, spread = raised / observations, _Z**2 / observations
    centre = (share + spread / 2) / (1 + spread)
    half = _Z * math.sqrt(share * (1 - share) / observations + spread / (4 * observations)) / (1 + spread)
    return AlarmChecks(
        observations=int(observations),
        raised=int(raised),
        expected=expected,
        rate=share,
        bound=(max(centre - half, 0.0), min(centre + half, 1.0)),
    )
