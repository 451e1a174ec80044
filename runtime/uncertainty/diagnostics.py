"""Why a reply should not be trusted: what its own checks say against it.

The share of values inside their 0.9 interval, one step ahead and at every horizon that was asked for, has failed where
it is off by more than a bar, FAR_OFF: of ENOUGH scored or more by itself, of fewer only if chance would not make it so
once in a thousand sound replies. Misses of forecasts h steps ahead come in runs of h, those of several components at
once, so n values say no more than n / (components · h); of so many a share s inside where the bar allows p has a
probability of at most

    exp(-n KL(s, p))                            KL(s, p) = s log(s / p) + (1 - s) log((1 - s) / (1 - p))

(Chernoff 1952; Hoeffding 1963), which is shared by all that is looked at. Adaptive intervals keep closer to their level
than chance would: theirs is a false warning still more seldom. But 500 forecasts 48 steps ahead, of a thousand rows,
are no more than 20 that are apart: one walk in 14 fails the bar there, though nothing is wrong with its intervals.

`auto` knows nothing but the series: where fewer than LEAST rows of it could be scored, a reply says so. Not of a live
stream, whose first frames are always few, nor of one that goes on, nor in Python, where a warning is of what is wrong,
and short series are common: their intervals are as wide as that makes them.

A network tells leads up to the furthest that it was trained at. What is asked for beyond is told as of that one, which
no count of what came true shows before it has come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from rfa.runtime.outputs import FilterWarning, ForecastChecks, WarningCode
from rfa.runtime.uncertainty.adaptive import MAX_PENDING
from rfa.runtime.uncertainty.alarms import LARGEST_RATE

LEVEL: Final = "0.9"
# What a sound filter's coverage stays within, one step and further ahead, and of how many values that can be asked.
FAR_OFF: Final = (0.02, 0.03)
ENOUGH: Final = 500
# Of fewer forecasts nothing is said of their coverage: a stream has just begun to learn.
LEAST: Final = 20
# False warnings a sound reply, by chance alone.
SELDOM: Final = 1e-3
# The share of outliers that is many.
MANY_OUTLIERS: Final = 0.1
# Typical lags from which on a horizon is further ahead than a step, and columns that are named at most.
BEYOND: Final = 1.5
NAMED: Final = 6
FIT: Final = "fit a filter to it with `rfa train filter --data FILE`"


class Answering(Protocol):
    """A model, by what is said of it."""

    @property
    def name(self) -> str: ...

    @property
    def suits_any(self) -> bool: ...

    @property
    def farthest(self) -> float: ...


def diagnose(
    model: Answering,
    checks: ForecastChecks,
    *,
    step: float = 0.0,
    ahead: Sequence[float] = (),
    is_whole: bool = False,
    followed: int = 0,
) -> list[FilterWarning]:
    """What speaks against the reply of a model; nothing where it is sound.

    Args:
        step: the stream's typical lag, which tells of a lead how many steps it is before one came true; 0 is unknown.
        ahead: leads of rows that come next, which are told beside those of the checks.
        is_whole: whether the checks are of a recorded series from its first row to its last.
        followed: so many of the leads, the last ones, were followed for the rows of `ahead`, and say so.
    """
    found = []
    observations = sum(checks.weighted_nis_bins)
    if is_whole and model.suits_any and observations < LEAST:
        rows = "1 row" if observations == 1 else f"{observations or 'no'} rows"
        found.append(_warning(model, "few_rows", f"{rows} could be held against a forecast: intervals are wide for it"))
    seldom = SELDOM / (2 + len(checks.components) + sum(lead.scored > 0 for lead in checks.leads))
    share = checks.outliers / observations if observations else 0.0
    if share > MANY_OUTLIERS and _is_seldom(share, MANY_OUTLIERS, observations, seldom):
        what = f"{checks.outliers:,} of {observations:,} observations are outliers to {model.name!r}"
        found.append(_warning(model, "many_outliers", what))
    alarms = checks.alarms
    if alarms is not None and alarms.observations >= LEAST and alarms.expected > LARGEST_RATE * alarms.observations:
        what = f"the rate asks for {alarms.expected:,.0f} alarms in {alarms.observations:,} observations"
        found.append(_warning(model, "many_alarms", what))
    found += _far(model, checks, step, ahead)
    next_one = _step(model, checks, observations, seldom)
    return [*found, *next_one, *_leads(model, checks, observations, seldom, followed, has_failed=bool(next_one))]


def _far(model: Answering, checks: ForecastChecks, step: float, ahead: Sequence[float]) -> list[FilterWarning]:
    """What is said where leads are beyond the furthest that the model can tell."""
    leads = [(lead.horizon, lead.steps or (lead.horizon / step if step else 0.0)) for lead in checks.leads]
    leads += [(lead, lead / step if step else 0.0) for lead in ahead]
    far = sorted(lead for lead in leads if lead[1] >= model.farthest + 0.5)
    if not far:
        return []
    what = (
        f"forecasts more than {model.farthest:g} steps ahead, here up to {far[-1][1]:,.0f}, are told as if they were "
        f"{model.farthest:g}: {model.name!r} was trained no further"
    )
    return [_warning(model, "far_ahead", what, horizon=far[0][0])]


def _step(model: Answering, checks: ForecastChecks, observations: int, seldom: float) -> list[FilterWarning]:
    """What speaks against its one-step intervals: of some components, else of all together."""
    by_code: dict[WarningCode, list[int]] = {}
    for a, component in enumerate(checks.components if len(checks.components) > 1 else []):
        if code := _failure(component.coverage.get(LEVEL), FAR_OFF[0], component.scored, component.scored, seldom):
            by_code.setdefault(code, []).append(a)
    if by_code:
        return [_warning(model, code, _of_columns(checks, failed), None, failed) for code, failed in by_code.items()]
    share = checks.coverage.get(LEVEL)
    if code := _failure(share, FAR_OFF[0], observations, observations, seldom):
        return [_warning(model, code, _held(share, checks.scored, "one step"))]
    return []


def _of_columns(checks: ForecastChecks, failed: list[int]) -> str:
    shares = [100 * (checks.components[a].coverage[LEVEL] or 0.0) for a in failed]
    low, high = f"{min(shares):.1f}", f"{max(shares):.1f}"
    named = ", ".join(str(a + 1) for a in failed[:NAMED]) + (", …" if len(failed) > NAMED else "")
    which = f"column{'s' if len(failed) > 1 else ''} {named} of {len(checks.components)}"
    told = low if low == high else f"{low} to {high}"
    return f"{told} % of the values of {which} were inside their 90 % interval one step ahead"


def _leads(
    model: Answering, checks: ForecastChecks, observations: int, seldom: float, followed: int, *, has_failed: bool
) -> list[FilterWarning]:
    """What speaks against its intervals further ahead, and against a step's where that is not said."""
    found = []
    components = checks.scored / observations if observations else 1.0
    for number, lead in enumerate(checks.leads):
        share, steps, rows = lead.coverage.get(LEVEL), lead.steps or 1.0, lead.scored / components
        is_step = steps < BEYOND
        if is_step and has_failed:
            continue
        runs = rows / min(max(steps, 1.0), MAX_PENDING)
        if code := _failure(share, FAR_OFF[0 if is_step else 1], rows, runs, seldom):
            what = _held(share, lead.scored, "one step" if is_step else f"{steps:.3g} steps")
            what += ", on the way to the rows of `ahead`" if number >= len(checks.leads) - followed else ""
            found.append(_warning(model, code, what, horizon=lead.horizon))
    return found


def _failure(
    share: float | None, far_off: float, scored: float, independent: float, seldom: float
) -> WarningCode | None:
    """How coverage has failed, if it has.

    Args:
        scored: that it is of.
        independent: as good as so many.
        seldom: how probable such a share may be by chance.
    """
    if share is None or scored < LEAST:
        return None
    off = share - float(LEVEL)
    if abs(off) <= far_off:
        return None
    allowed = float(LEVEL) + math.copysign(far_off, off)
    if scored < ENOUGH and not _is_seldom(share, allowed, independent, seldom / 2):
        return None
    return "low_coverage" if off < 0 else "high_coverage"


def _is_seldom(share: float, p: float, count: float, seldom: float) -> bool:
    """Whether a share of so many, or one further off, is that improbable where p is the probability of each."""
    divergence = sum(x * math.log(x / y) for x, y in ((share, p), (1 - share, 1 - p)) if x > 0)
    return count * divergence >= math.log(1 / seldom)


def _held(share: float | None, scored: int, ahead: str) -> str:
    return f"{100 * (share or 0.0):.1f} % of {scored:,} values were inside their 90 % interval {ahead} ahead"


def _warning(
    model: Answering, code: WarningCode, what: str, horizon: float | None = None, components: list[int] | None = None
) -> FilterWarning:
    if not model.suits_any:
        advice = f"{model.name!r} does not describe this series: name no model, or {FIT}"
    elif code == "high_coverage":
        causes = "as after a value far off, or where values stand still or repeat"
        advice = f"they are too wide, {causes}: leave these out, or {FIT}"
    elif code == "low_coverage":
        advice = f"the series changes faster than its intervals learn: send more of its past first, or {FIT}"
    elif code == "far_ahead":
        advice = "name the model 'auto', which has no such bound, or take coarser rows (`rfa filter --every`)"
    elif code == "many_alarms":
        advice = "give a rarer one, or a share of the observations such as 0.001; times count as seconds"
    elif code == "few_rows":
        advice = "send more of the series' past, if there is any"
    else:
        advice = f"where they are errors of the sensor send null for them, else {FIT}"
    return FilterWarning(code, horizon, components, f"{what}; {advice}")
