"""Create the warnings of a reply, based on checks of its own results.

A coverage check fails if the fraction of values inside their 0.9 interval, one step ahead or at a requested horizon,
differs from 0.9 by more than TOLERANCE. With at least ENOUGH scored forecasts, this alone produces the warning. With
fewer, the difference must also be significant under a binomial distribution. The threshold is chosen so that correct
replies have a false warning with a probability below FALSE_WARNINGS. Misses of overlapping forecasts, and of several
components, are correlated. Simulations of a random walk show that n misses h steps ahead have the variance of n /
(OVERLAP · h) independent ones, and n values of several components that of n / components. The coverage of adaptive
intervals varies less than that of independent trials, so false warnings are rarer.

If most forecasts are nearly exact, as for constants, repeated patterns and counts that are nearly always zero, wide
intervals are not a failure.

`auto` learns only from the series, so a reply with fewer than LEAST scored rows has a warning. Live and continued
streams do not have this warning, nor does Python, where short series are common.

A network forecasts up to the furthest horizon that it was trained for, and repeats that forecast beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from rfa.runtime.outputs import FilterWarning, ForecastChecks, WarningCode
from rfa.runtime.uncertainty.alarms import LARGEST_RATE
from rfa.runtime.uncertainty.forecast_checks import PIT_BINS

LEVEL: Final = "0.9"
# Allowed distance of the coverage from the level one step ahead, and further ahead.
TOLERANCE: Final = (0.02, 0.03)
ENOUGH: Final = 500
# Minimum number of forecasts from which coverage is reported.
LEAST: Final = 20
# Largest probability of a warning for a correct reply.
FALSE_WARNINGS: Final = 5e-3
OVERLAP: Final = 0.5
# If the fraction of nearly exact forecasts (values next to the median) reaches this number, wide intervals are no
# failure.
MOSTLY_EXACT: Final = 0.6
# Bins of the PIT that contain nearly exact forecasts.
MIDDLE: Final = slice(PIT_BINS // 2 - 1, PIT_BINS // 2 + 1)
# Fraction of outliers above which there is a warning.
MANY_OUTLIERS: Final = 0.1
# Number of typical lags from which a horizon is treated as further ahead than one step.
BEYOND: Final = 1.5
# Numbers of steps within this relative distance of an integer are treated as that integer.
NEARLY_WHOLE: Final = 0.03
# Maximum number of columns that a message names.
NAMED: Final = 6
FIT: Final = "fit a filter to it with `rfa train filter --data FILE`"


class Model(Protocol):
    """Interface of a model: the properties on which warnings depend."""

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
    """Return warnings about the reply of a model. The list is empty if the checks find no problem.

    Args:
        model: The model.
        checks: Checks of the forecasts of the reply.
        step: Typical lag of the stream. 0 if it is unknown.
        ahead: Horizons of the forecasts after the last observation.
        is_whole: Whether the checks cover a recorded series from its first row to its last.
        followed: Number of horizons at the end of the checked ones that were not requested. Their forecasts were scored
            to check those in `ahead`.
        names: Names of the components. Empty if they are numbered.
    """
    found = []
    observations = sum(checks.weighted_nis_bins)
    if is_whole and model.suits_any and observations < LEAST:
        rows = "only 1 row" if observations == 1 else f"only {observations} rows" if observations else "no rows"
        found.append(
            _warning(model, "few_rows", f"intervals are wide, because {rows} could be compared with a forecast")
        )
    probability = FALSE_WARNINGS / (2 + len(checks.components) + sum(lead.scored > 0 for lead in checks.leads))
    share = checks.outliers / observations if observations else 0.0
    if share > MANY_OUTLIERS and _is_rare(share, MANY_OUTLIERS, observations, probability):
        what = f"{checks.outliers:,} of {observations:,} observations are outliers for {model.name!r}"
        found.append(_warning(model, "many_outliers", what))
    alarms = checks.alarms
    if alarms is not None and alarms.observations >= LEAST and alarms.expected > LARGEST_RATE * alarms.observations:
        what = f"the alarm rate corresponds to {alarms.expected:,.0f} alarms in {alarms.observations:,} observations"
        found.append(_warning(model, "many_alarms", what))
    found += _check_furthest(model, checks, step, ahead)
    next_one = _check_step(model, checks, observations, probability, names)
    further = _check_leads(model, checks, observations, probability, followed, has_failed=bool(next_one))
    is_exact = sum(checks.pit[MIDDLE]) >= MOSTLY_EXACT * checks.scored
    coverage = [one for one in (*next_one, *further) if one.code == "low_coverage" or not is_exact]
    return [*found, *coverage]


def _check_furthest(model: Model, checks: ForecastChecks, step: float, ahead: Sequence[float]) -> list[FilterWarning]:
    """Return a warning if a horizon is beyond the furthest one that the model was trained for. Otherwise, return an
    empty list."""
    leads = [(lead.horizon, lead.steps or (lead.horizon / step if step else 0.0)) for lead in checks.leads]
    leads += [(lead, lead / step if step else 0.0) for lead in ahead]
    far = sorted(lead for lead in leads if lead[1] >= model.farthest + 0.5)
    if not far:
        return []
    what = (
        f"forecasts more than {model.farthest:g} steps ahead (here up to {far[-1][1]:,.0f}) equal the forecast "
        f"{model.farthest:g} steps ahead, because {model.name!r} was not trained for longer horizons"
    )
    return [_warning(model, "far_ahead", what, horizon=far[0][0])]


def _check_step(
    model: Model, checks: ForecastChecks, observations: int, probability: float, names: Sequence[str]
) -> list[FilterWarning]:
    """Return warnings about the one-step intervals of single components. If there are none, check the intervals of all
    components together."""
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
    """Return warnings about the intervals at the horizons. A horizon of one step is checked only if `_check_step` found
    nothing."""
    found = []
    components = checks.scored / observations if observations else 1.0
    for number, lead in enumerate(checks.leads):
        share, steps, rows = lead.coverage.get(LEVEL), lead.steps or 1.0, lead.scored / components
        is_step = steps < BEYOND
        if is_step and has_failed:
            continue
        # If forecasts are scored only every few rows, fewer of them overlap.
        overlapping = steps * (min(rows / observations, 1.0) if observations else 1.0)
        runs = rows / max(OVERLAP * overlapping, 1.0)
        if code := _failure(share, TOLERANCE[0 if is_step else 1], rows, runs, probability):
            what = _inside(share, lead.scored, "one row" if is_step else f"{name_steps(steps)} rows")
            what += ", a horizon that is scored because of `ahead`" if number >= len(checks.leads) - followed else ""
            found.append(_warning(model, code, what, horizon=lead.horizon))
    return found


def name_steps(steps: float) -> str:
    """Return a number of steps as text. Numbers close to an integer are rounded, because months differ in length, so
    that three of them may be 2.99 typical steps."""
    near = round(steps)
    return f"{near:,}" if abs(steps - near) <= NEARLY_WHOLE * steps else f"{steps:.3g}"


def _failure(
    share: float | None, tolerance: float, scored: float, independent: float, probability: float
) -> WarningCode | None:
    """Return the code of the warning about the coverage of `scored` forecasts, or None if there is no warning.

    Args:
        share: Fraction of values inside the interval. None if there is none.
        tolerance: Allowed distance from the level.
        scored: Number of scored forecasts.
        independent: Number of independent forecasts whose coverage would have the same variance.
        probability: Significance level of the two-sided test.
    """
    if share is None or scored < LEAST:
        return None
    off = share - float(LEVEL)
    if abs(off) <= tolerance or (scored < ENOUGH and _chance(share, independent) > probability / 2):
        return None
    return "low_coverage" if off < 0 else "high_coverage"


def _chance(share: float, count: float) -> float:
    """Return the probability that chance alone results in the given fraction of values inside, or in one that is
    further from the level. `count` is the number of forecasts."""
    number, level = round(count), float(LEVEL)
    # A fraction between two possible ones is rounded towards the level.
    inside = math.ceil(share * number - 1e-9) if share < level else math.floor(share * number + 1e-9)
    further = range(inside + 1) if share < level else range(inside, number + 1)
    return math.fsum(math.comb(number, k) * level**k * (1 - level) ** (number - k) for k in further)


def _is_rare(share: float, p: float, count: float, probability: float) -> bool:
    """Return whether a fraction is improbable if each of `count` events has probability p. The probability of this
    fraction, or of one further from p, must be at most `probability`."""
    divergence = sum(x * math.log(x / y) for x, y in ((share, p), (1 - share, 1 - p)) if x > 0)
    return count * divergence >= math.log(1 / probability)


def _inside(share: float | None, scored: int, ahead: str) -> str:
    return f"{100 * (share or 0.0):.1f} % of {scored:,} values were inside their 90 % interval {ahead} ahead"


def _warning(
    model: Model, code: WarningCode, what: str, horizon: float | None = None, components: list[int] | None = None
) -> FilterWarning:
    if not model.suits_any:
        advice = f"{model.name!r} does not describe this series; omit the model, or {FIT}"
    elif code == "high_coverage":
        advice = f"the intervals are too wide, often because of outliers or repeated values; remove these, or {FIT}"
    elif code == "low_coverage":
        advice = f"the series changes faster than its intervals adapt; send more earlier observations, or {FIT}"
    elif code == "far_ahead":
        advice = "use the model 'auto', which does not have this limit, or coarser rows (`rfa filter --every`)"
    elif code == "many_alarms":
        advice = "set a lower rate, or a fraction of the observations such as 0.001; times are interpreted as seconds"
    elif code == "few_rows":
        advice = "also send earlier observations of the series, if there are any"
    else:
        advice = f"if they are sensor errors, send null for them; otherwise, {FIT}"
    return FilterWarning(code, horizon, components, f"{what}; {advice}")
