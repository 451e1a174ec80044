"""Options of alarms, and the comparison of the number of alarms with the requested rate. An alarm is an observation
that is as rare in its stream as requested."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any, Final, Literal, NamedTuple, get_args

from rfa.runtime.errors import InvalidInput
from rfa.runtime.outputs import AlarmChecks, RaisedBy
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION
from rfa.runtime.uncertainty.mute import Mute, Window

Direction = Literal["both", "up", "down"]
Rule = Literal["value", "stretch", "standstill", "gap"]
# Names of the rules by the codes in rules.py. The last one, "range", means a value beyond the limits.
RULE_NAMES: Final[tuple[RaisedBy, ...]] = get_args(RaisedBy)
# Share of the rate of each rule, in the order of `Rule`.
_SHARES: Final = (0.7, 0.2, 0.05, 0.05)
SHARES: Final[dict[Rule, float]] = dict(zip(get_args(Rule), _SHARES, strict=True))
# A month is a twelfth of a year.
SECONDS: Final = {
    "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_630_016, "year": 31_560_192,
}  # fmt: skip
# Pattern of "1/day", "0.5/hour" or "12 / week". 0 is not allowed, because it would raise no alarm, not even for a
# range.
_ABOVE_ZERO: Final = r"0*[1-9][0-9]*(?:\.[0-9]+)?|0+\.0*[1-9][0-9]*"
RATE_PATTERN: Final = rf"^({_ABOVE_ZERO}) ?/ ?({'|'.join(SECONDS)})$"
# Largest rate as a fraction of the observations.
LARGEST_RATE: Final = 0.5
RATE_FORM: Final = (
    f'a fraction of the observations, above 0 and at most {LARGEST_RATE}, or a number per unit of time such as "1/day"'
)
MOST_QUIET: Final = 1_000_000
# Quantile of the normal distribution for a 95 % interval.
_Z = 1.96


class AlarmRule(NamedTuple):
    """Conditions for an alarm, as numbers for compiled code.

    Attributes:
        rate, per_time: Expected alarms per observation, and per unit of time since the previous observation. Both are 0
            if no alarms are requested.
        direction: 1 for alarms above the forecast, -1 for alarms below it, and 0 for both.
        deviation: Minimum distance from the forecast, in units of the observation.
        low, high: Limits. An observation outside these limits is an alarm, even if such observations are frequent.
        quiet: Number of observations after an alarm in which only much rarer ones are alarms.
        shares: Fraction of the rate for each rule, in the order of SHARES.
    """

    rate: float = 0.0
    per_time: float = 0.0
    direction: int = 0
    deviation: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    quiet: int = 0
    shares: tuple[float, float, float, float] = _SHARES


class Alarm(NamedTuple):
    """Options of the alarms of a request: their rule, and windows without alarms."""

    rule: AlarmRule = AlarmRule()
    mute: Mute = Mute()

    @property
    def needs_times(self) -> str | None:
        """Name of the option that requires times in seconds. None if there is none."""
        return "rate" if self.rule.per_time else "mute" if self.mute else None


NEVER: Final = Alarm()


def alarm(
    rate: float | str,
    *,
    direction: Direction = "both",
    min_deviation: float = 0.0,
    range: Sequence[float | None] | None = None,
    quiet: int = 0,
    rules: Sequence[Rule] = tuple(SHARES),
    mute: Sequence[Window] = (),
    tz: str = "UTC",
) -> Alarm:
    """Return the alarm options of a request. The arguments are the same in all interfaces.

    Args:
        rate: Fraction of the observations, also as a text; or, if times are in seconds, a text that matches
            RATE_PATTERN.
        direction: Whether to raise alarms above the forecast, below it, or both.
        min_deviation: Minimum distance from the forecast. Standstills and gaps have neither direction nor distance, and
            raise no alarm if one of these options is set.
        range: Lowest and highest value. None means no limit. Every observation outside is an alarm.
        quiet: Number of observations after an alarm in which only much rarer ones are alarms.
        rules: Rules that may raise an alarm. The rate is divided among them.
        mute: Maintenance windows. See `Mute.of`.
        tz: Time zone of the windows.

    Raises:
        InvalidInput: If an option is invalid. The message names it.
    """
    rate = _fraction(rate)
    _check(rate, direction, min_deviation, range, quiet, rules)
    per_time = 0.0
    if isinstance(rate, str):
        count, unit = rate.replace(" ", "").split("/")
        rate, per_time = 0.0, float(count) / SECONDS[unit]
    low, high = range or (None, None)
    asked = sum(SHARES[rule] for rule in dict.fromkeys(rules))
    first, second, third, fourth = (share / asked if rule in rules else 0.0 for rule, share in SHARES.items())
    rule = AlarmRule(
        float(rate), per_time, {"both": 0, "up": 1, "down": -1}[direction], float(min_deviation),
        -math.inf if low is None else float(low), math.inf if high is None else float(high), quiet,
        (first, second, third, fourth),
    )  # fmt: skip
    return Alarm(rule, Mute.of(mute, tz))


OPTIONS: Final = ("rate", "direction", "min_deviation", "range", "quiet", "rules", "mute")


def alarm_of(options: Mapping[str, Any] | None, tz: str = "UTC") -> Alarm:
    """Return alarm options from a mapping of names to values. If `options` is None, alarms are disabled.

    Args:
        options: Mapping from option names to values. See `alarm`.
        tz: Time zone of maintenance windows.

    Raises:
        InvalidInput: If an option is unknown, missing or invalid. The message names the option.
    """
    if options is None:
        return NEVER
    if unknown := set(options) - set(OPTIONS):
        name = f"alarm.{min(unknown)}"
        message = f"{name} is not an option of alarms; the options are {', '.join(OPTIONS)}"
        raise InvalidInput(message, param=name, code="extra_forbidden")
    if "rate" not in options:
        raise InvalidInput(f"alarm.rate is required: {RATE_FORM}", param="alarm.rate", code="missing")
    return alarm(**options, tz=tz)


def _fraction(rate: float | str) -> float | str:
    """Return the number of a text such as "0.01". Return any other rate unchanged."""
    try:
        return float(rate) if isinstance(rate, str) else rate
    except ValueError:
        return rate


def _check(
    rate: float | str, direction: str, min_deviation: float, limits: Any, quiet: int, rules: Sequence[str]
) -> None:
    if isinstance(rate, str):
        is_rate = re.fullmatch(RATE_PATTERN, rate) is not None
    else:
        is_rate = isinstance(rate, int | float) and 0 < rate <= LARGEST_RATE
    checks = {
        "rate": (is_rate, f"be {RATE_FORM}"),
        "direction": (direction in get_args(Direction), "be up, down or both"),
        "min_deviation": (
            isinstance(min_deviation, Real) and 0 <= min_deviation <= LARGEST_OBSERVATION,
            f"be a number from 0 to {LARGEST_OBSERVATION:g}",
        ),
        "range": (limits is None or _is_range(limits), "be a list of the lower and the upper limit"),
        "quiet": (isinstance(quiet, int) and 0 <= quiet <= MOST_QUIET, f"be an integer from 0 to {MOST_QUIET}"),
        "rules": (
            isinstance(rules, Collection) and bool(rules) and all(rule in get_args(Rule) for rule in rules),
            f"be one or more of {', '.join(SHARES)}",
        ),
    }
    for field, (is_good, expected) in checks.items():
        if not is_good:
            raise InvalidInput(f"alarm.{field} must {expected}", param=f"alarm.{field}", code="out_of_range")


def _is_range(limits: Any) -> bool:
    if not isinstance(limits, Sequence) or len(limits) != 2:
        return False
    numbers = [limit for limit in limits if limit is not None]
    if not all(isinstance(limit, Real) for limit in numbers):
        return False
    return numbers == sorted(numbers) and all(abs(limit) <= LARGEST_OBSERVATION for limit in numbers)


def is_most(alarms: Alarm, step: float) -> bool:
    """Return whether the requested rate per unit of time exceeds LARGEST_RATE alarms per typical lag. `step` is the
    typical lag."""
    return alarms.rule.per_time * step > LARGEST_RATE


def count_alarms(observations: float, expected: float, raised: float) -> AlarmChecks | None:
    """Compare the number of raised alarms with the number of expected alarms, with a Wilson interval. Return None if no
    observation could be an alarm."""
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
