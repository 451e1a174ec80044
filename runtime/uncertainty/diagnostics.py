"""Warnings of a reply: evidence in its own checks that its numbers are unreliable.

The share of values inside their 0.9 interval, one step ahead and at every requested horizon, fails where it is off by
more than TOLERANCE. From ENOUGH scored forecasts on that is enough; with fewer, it must also be improbable, by the
binomial distribution: fewer than FALSE_WARNINGS of sound replies may be warned of by chance, by all checks together.
Misses of forecasts that overlap come in runs, and those of several components together. Of a random walk, n misses of
forecasts h steps ahead vary as n / (OVERLAP · h) independent ones, by simulation, and n values of several components
count as n / components. Adaptive intervals stay closer to their level than chance would, so false warnings are rarer.

Where most forecasts are nearly exact, as of constants, repeated patterns and counts that are nearly always zero, wide
intervals are no failure.

`auto` starts from the series alone: a reply with fewer than LEAST scored rows warns of that. Live streams and continued
ones do not, nor does Python, where short series are common.

A network forecasts up to the furthest horizon that it was trained at; beyond it repeats that forecast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from rfa.runtime.outputs import FilterWarning, ForecastChecks, WarningCode
from rfa.runtime.uncertainty.alarms import LARGEST_RATE
from rfa.runtime.uncertainty.forecast_checks import PIT_BINS

LEVEL: Final = "0.9"
# How far a sound filter's coverage may be from the level, one step and further ahead, from ENOUGH forecasts on.
TOLERANCE: Final = (0.02, 0.03)
ENOUGH: Final = 500
# Coverage is reported from this many forecasts on.
LEAST: Final = 20
# Largest probability of a warning for a sound reply. Independent forecasts: see above.
FALSE_WARNINGS: Final = 5e-3
OVERLAP: Final = 0.5
# Share of nearly exact forecasts, whose values lie next to the median, from which on the others are not judged.
MOSTLY_EXACT: Final = 0.6
# The share of outliers that is too many.
MANY_OUTLIERS: Final = 0.1
# Bins of the PIT that have nearly exact forecasts.
MIDDLE: Final = slice(PIT_BINS // 2 - 1, PIT_BINS // 2 + 1)
# A horizon is further ahead than one step from so many typical lags on.
BEYOND: Final = 1.5
# Steps that differ from a whole number by less than this share are it.
NEARLY_WHOLE: Final = 0.03
# Columns that are named in a message.
NAMED: Final = 6
FIT: Final = "fit a filter to it with `rfa train filter --data FILE`"


class Model(Protocol):
    """What warnings say of a model."""

    @property
    def name(self) -> str: ...

    @property
    def suits_any(self) -> bool: ...

    @property
    def farthest(self) -> float: ...


def diagnose(
    model: Model,
    checks: ForecastChecks,
    *,
    step: float = 0.0,
    ahead: Sequence[float] = (),
    is_whole: bool = False,
    followed: int = 0,
    names: Sequence[str] = (),
) -> list[FilterWarning]:
    """Warnings about the reply of a model; none if it is sound.

    Args:
        step: the stream's typical lag; 0 if unknown.
        ahead: horizons of the rows to come, without those of the checks.
        is_whole: whether the checks are of a recorded series from its first row to its last.
        followed: this many of the horizons, the last ones, were scored for the rows of `ahead`; warnings say so.
        names: of the components; none where they are numbered.
    """
    found = []
    observations = sum(checks.weighted_nis_bins)
    if is_whole and model.suits_any and observations < LEAST:
        rows = "1 row" if observations == 1 else f"{observations or 'no'} rows"
        found.append(_warning(model, "few_rows", f"{rows} could be compared with a forecast: intervals are wide"))
    probability = FALSE_WARNINGS / (2 + len(checks.components) + sum(lead.scored > 0 for lead in checks.leads))
    share = checks.outliers / observations if observations else 0.0
    if share > MANY_OUTLIERS and _is_rare(share, MANY_OUTLIERS, observations, probability):
        what = f"{checks.outliers:,} of {observations:,} observations are outliers to {model.name!r}"
        found.append(_warning(model, "many_outliers", what))
    alarms = checks.alarms
    if alarms is not None and alarms.observations >= LEAST and alarms.expected > LARGEST_RATE * alarms.observations:
        what = f"the rate asks for {alarms.expected:,.0f} alarms in {alarms.observations:,} observations"
        found.append(_warning(model, "many_alarms", what))
    found += _check_furthest(model, checks, step, ahead)
    next_one = _check_step(model, checks, observations, probability, names)
    further = _check_leads(model, checks, observations, probability, followed, has_failed=bool(next_one))
    is_exact = sum(checks.pit[MIDDLE]) >= MOSTLY_EXACT * checks.scored
    coverage = [one for one in (*next_one, *further) if one.code == "low_coverage" or not is_exact]
    return [*found, *coverage]


def _check_furthest(model: Model, checks: ForecastChecks, step: float, ahead: Sequence[float]) -> list[FilterWarning]:
    """Horizons beyond the furthest that the model was trained at."""
    leads = [(lead.horizon, lead.steps or (lead.horizon / step if step else 0.0)) for lead in checks.leads]
    leads += [(lead, lead / step if step else 0.0) for lead in ahead]
    far = sorted(lead for lead in leads if lead[1] >= model.farthest + 0.5)
    if not far:
        return []
    what = (
        f"forecasts more than {model.farthest:g} steps ahead, here up to {far[-1][1]:,.0f}, repeat the one "
        f"{model.farthest:g} steps ahead: {model.name!r} was trained no further"
    )
    return [_warning(model, "far_ahead", what, horizon=far[0][0])]


def _check_step(
    model: Model, checks: ForecastChecks, observations: int, probability: float, names: Sequence[str]
) -> list[FilterWarning]:
    """One-step intervals: of some components, else of all together."""
    by_code: dict[WarningCode, list[int]] = {}
    for a, component in enumerate(checks.components if len(checks.components) > 1 else []):
        if code := _failure(
            component.coverage.get(LEVEL), TOLERANCE[0], component.scored, component.scored, probability
        ):
            by_code.setdefault(code, []).append(a)
    if by_code:
        return [
            _warning(model, code, _name_columns(checks, failed, names), None, failed)
            for code, failed in by_code.items()
        ]
    share = checks.coverage.get(LEVEL)
    if code := _failure(share, TOLERANCE[0], observations, observations, probability):
        return [_warning(model, code, _inside(share, checks.scored, "one row"))]
    return []


def _name_columns(checks: ForecastChecks, failed: list[int], names: Sequence[str]) -> str:
    shares = [100 * (checks.components[a].coverage[LEVEL] or 0.0) for a in failed]
    low, high = f"{min(shares):.1f}", f"{max(shares):.1f}"
    named = ", ".join(repr(names[a]) if names else str(a + 1) for a in failed[:NAMED])
    named += ", …" if len(failed) > NAMED else ""
    which = f"column{'s' if len(failed) > 1 else ''} {named}" + ("" if names else f" of {len(checks.components)}")
    range_ = low if low == high else f"{low} to {high}"
    return f"{range_} % of the values of {which} were inside their 90 % interval one row ahead"


def _check_leads(
    model: Model, checks: ForecastChecks, observations: int, probability: float, followed: int, *, has_failed: bool
) -> list[FilterWarning]:
    """Intervals at the horizons; about one step only where `_check_step` found nothing."""
    found = []
    components = checks.scored / observations if observations else 1.0
    for number, lead in enumerate(checks.leads):
        share, steps, rows = lead.coverage.get(LEVEL), lead.steps or 1.0, lead.scored / components
        is_step = steps < BEYOND
        if is_step and has_failed:
            continue
        # Of forecasts that are scored every few rows, fewer overlap.
        overlapping = steps * (min(rows / observations, 1.0) if observations else 1.0)
        runs = rows / max(OVERLAP * overlapping, 1.0)
        if code := _failure(share, TOLERANCE[0 if is_step else 1], rows, runs, probability):
            what = _inside(share, lead.scored, "one row" if is_step else f"{name_steps(steps)} rows")
            what += ", on the way to the rows of `ahead`" if number >= len(checks.leads) - followed else ""
            found.append(_warning(model, code, what, horizon=lead.horizon))
    return found


def name_steps(steps: float) -> str:
    """A number of steps for a reader: months differ in length, so that three of them are 2.99 typical steps."""
    near = round(steps)
    return f"{near:,}" if abs(steps - near) <= NEARLY_WHOLE * steps else f"{steps:.3g}"


def _failure(
    share: float | None, tolerance: float, scored: float, independent: float, probability: float
) -> WarningCode | None:
    """How the coverage of `scored` forecasts has failed, if it has.

    Args:
        independent: the number of independent forecasts that these are worth.
        probability: the largest of such a share by chance.
    """
    if share is None or scored < LEAST:
        return None
    off = share - float(LEVEL)
    if abs(off) <= tolerance or (scored < ENOUGH and _chance(share, independent) > probability / 2):
        return None
    return "low_coverage" if off < 0 else "high_coverage"


def _chance(share: float, count: float) -> float:
    """The probability that a share of so many forecasts, or one further from the level, is inside by chance."""
    number, level = round(count), float(LEVEL)
    # A share between two possible ones counts as the nearer one to the level.
    inside = math.ceil(share * number - 1e-9) if share < level else math.floor(share * number + 1e-9)
    further = range(inside + 1) if share < level else range(inside, number + 1)
    return math.fsum(math.comb(number, k) * level**k * (1 - level) ** (number - k) for k in further)


def _is_rare(share: float, p: float, count: float, probability: float) -> bool:
    """Whether `share` of `count`, or one further from p, is this improbable where p is the probability of each."""
    divergence = sum(x * math.log(x / y) for x, y in ((share, p), (1 - share, 1 - p)) if x > 0)
    return count * divergence >= math.log(1 / probability)


def _inside(share: float | None, scored: int, ahead: str) -> str:
    return f"{100 * (share or 0.0):.1f} % of {scored:,} values were inside their 90 % interval {ahead} ahead"


def _warning(
    model: Model, code: WarningCode, what: str, horizon: float | None = None, components: list[int] | None = None
) -> FilterWarning:
    if not model.suits_any:
        advice = f"{model.name!r} does not describe this series: name no model, or {FIT}"
    elif code == "high_coverage":
        advice = f"they are too wide, often because of outliers or repeated values: leave these out, or {FIT}"
    elif code == "low_coverage":
        advice = f"the series changes faster than its intervals learn: send more of its past first, or {FIT}"
    elif code == "far_ahead":
        advice = "name the model 'auto', which has no such bound, or take coarser rows (`rfa filter --every`)"
    elif code == "many_alarms":
        advice = "set a lower rate, or a share of the observations such as 0.001; times count as seconds"
    elif code == "few_rows":
        advice = "send more of the series' past, if there is any"
    else:
        advice = f"if they are sensor errors, send null for them, else {FIT}"
    return FilterWarning(code, horizon, components, f"{what}; {advice}")
