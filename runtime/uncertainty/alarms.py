"""Alarms: observations that are as rare on their stream as was asked for, and how many there were."""

from __future__ import annotations

import math
import re
from typing import Final, Literal, NamedTuple, get_args

from rfa.runtime.errors import InvalidInput
from rfa.runtime.outputs import AlarmChecks
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION

Direction = Literal["both", "up", "down"]
SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
# What is rarer is one per so many: "1/day", "0.5/hour", "12 / week". Not 0: that would be none, of a range neither.
_ABOVE_ZERO: Final = r"0*[1-9][0-9]*(?:\.[0-9]+)?|0+\.0*[1-9][0-9]*"
RATE_PATTERN: Final = rf"^({_ABOVE_ZERO}) ?/ ?({'|'.join(SECONDS)})$"
# Of the observations.
LARGEST_RATE: Final = 0.5
MOST_QUIET: Final = 1_000_000
# Of a normal variable, of which 95 % lie nearer.
_LIKELY = 1.96


class Alarm(NamedTuple):
    """When an observation is an alarm.

    Attributes:
        rate, per_time: so rare it is, per observation and per unit of time since the one before; both 0 asks for none.
        direction: 1 above what was expected, -1 below, 0 either.
        deviation: it is at least so far from what was expected, in units of the observation.
        low, high: outside of them it is an alarm however rare that is.
        quiet: for so many observations after an alarm there is no other, but one that is rarer by far.
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
    """An alarm at a rate: a share of the observations, or a text as RATE_PATTERN has it, of times in seconds.

    Args:
        within: outside of these limits every observation is an alarm.

    Raises:
        InvalidInput: naming the field of `alarm`.
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
    """Whether a rate per time asks for more of the rows, usually so far apart, than a share may."""
    return rule.per_time * step > LARGEST_RATE


def count_alarms(asked: float, expected: float, raised: float) -> AlarmChecks | None:
    """What became of the alarms of a request; None where it asked for none, or nothing was observed."""
    if not asked:
        return None
    share, spread = raised / asked, _LIKELY**2 / asked
    centre = (share + spread / 2) / (1 + spread)
    half = _LIKELY * math.sqrt(share * (1 - share) / asked + spread / (4 * asked)) / (1 + spread)
    return AlarmChecks(
        observations=int(asked),
        raised=int(raised),
        expected=expected,
        rate=share,
        bound=(max(centre - half, 0.0), min(centre + half, 1.0)),
    )
