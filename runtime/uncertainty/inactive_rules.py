"""Alarm rules that did not have enough history at the end of a series, and what they need.

A rule is active if it can assign a tail probability that is at most its share of the alarm rate (rules.py). Until then,
its share is added to that of the rule `value`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rfa.runtime.uncertainty import learned_tail, lengths, stretch
from rfa.runtime.uncertainty.alarms import RULE_NAMES, AlarmRule
from rfa.runtime.uncertainty.rules import FEWEST, GAP, GAPS, RUNS, STANDSTILL, STRETCH

Array = np.ndarray[Any, Any]
# History from which the tail of `stretch` is estimated. The first working day and the first day of a weekend only set
# the profile. See learned_tail.FIRST, stretch.FEWEST_DAYS and stretch.FEWEST_STRETCHES.
STRETCH_HISTORY: Final = (
    "about 300 rows in at least 7 days of several rows, or about 720 rows, after the first working and weekend day"
)


def describe_inactive_rules(adaptive: Mapping[str, Array], rule: AlarmRule, step: float) -> str | None:
    """Return a sentence that names the requested rules that are not active yet, and what they need. Return None if all
    are active, or no alarms are requested.

    Args:
        adaptive: Adaptive state of the stream after its last row. See `FilterState`.
        rule: Conditions for an alarm.
        step: Typical lag, in units of the times. 0 if it is unknown.
    """
    rate = min(rule.rate + rule.per_time * step, 1.0)
    rules: dict[str, list[str]] = {}
    for number in (STRETCH, STANDSTILL, GAP) if rate > 0 else ():
        # Standstills and gaps have neither direction nor size.
        is_asked = number == STRETCH or (rule.direction == 0 and rule.deviation == 0)
        if rule.shares[number] > 0 and is_asked and (need := _need(adaptive, number, rule.shares[number] * rate)):
            rules.setdefault(need, []).append(repr(RULE_NAMES[number]))
    needs = [f"{' and '.join(names)} need{'s' * (len(names) == 1)} {need}" for need, names in rules.items()]
    return f"not all alarm rules were active yet: {'; '.join(needs)}" if needs else None


def _need(adaptive: Mapping[str, Array], number: int, rate: float) -> str | None:
    """Return what a rule needs to raise alarms at a rate, or None if it is active. The column with the longest history
    counts."""
    if number == STRETCH:
        has_begun = adaptive["alarm.tail"][:, learned_tail.THRESHOLD] > 0
        if not has_begun.any():
            return STRETCH_HISTORY
        rows, farthest = adaptive["alarm.stretch"][has_begun, stretch.SCORED], stretch.FARTHEST
    else:
        rows = adaptive["alarm.lengths"][:, RUNS if number == STANDSTILL else GAPS, lengths.COUNT]
        farthest = lengths.FARTHEST
    columns, fewest = len(adaptive["alarm.lengths"]), FEWEST if number == STANDSTILL else 0
    needed = max(columns / (farthest * rate), fewest)
    return None if rows.max() + 1 >= needed else f"about {_round_up(needed):,} rows at this rate"


def _round_up(number: float) -> int:
    """Return a number rounded up to two significant digits."""
    unit = 10.0 ** max(math.floor(math.log10(number)) - 1, 0)
    return int(unit * math.ceil(number / unit))
