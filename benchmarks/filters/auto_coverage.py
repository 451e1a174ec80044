"""Coverage of the intervals of `auto` on simulated and recorded series, over HTTP.

    python -m rfa.benchmarks.filters.auto_coverage --data DATA

DATA has nab/ and ett/ETTh1.csv. Each column is posted to `/filter` with forecasts of 1, 12 and 48 median lags. Scores
are coverage of 90 %, MAE relative to the last value, and the interval score (Gneiting and Raftery 2007).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser, post
from rfa.benchmarks.load.server import started
from rfa.benchmarks.nab.benchmark import load_nab
from rfa.benchmarks.series.files import read_ett
from rfa.measured import origin

Array = np.ndarray
LEADS, LEVEL = (1, 12, 48), 0.9
# Allowed distance of coverage from its level at each horizon, and minimum number of forecasts for this target.
NEAR, SCORED = (0.02, 0.03, 0.03), 500
LENGTH, SEED, EARLY = 4_000, 11, 50
SECOND, MINUTES, HOUR, DAY = 1.0, 300.0, 3_600.0, 86_400.0
# Number of missing rows of an irregular clock.
GAPS = 0.1


class Recorded(NamedTuple):
    """Times and values `[N]`, NaN where missing."""

    name: str
    times: Array
    values: Array


class Forecasts(NamedTuple):
    """Mean, lower and upper end of forecasts at each horizon `[leads, N]`, and whether the reply warns `[leads]`."""

    mean: Array
    lower: Array
    upper: Array
    warns: Sequence[bool]


def _autoregression(noise: Array, share: float) -> Array:
    path = np.empty(len(noise))
    last = 0.0
    for t, one in enumerate(noise):
        last = share * last + one
        path[t] = last
    return path


def simulated_kinds(rng: np.random.Generator) -> dict[str, Array]:
    """Return simulated series of many kinds, `LENGTH` each."""
    rows = np.arange(LENGTH)
    noise = rng.standard_normal((6, LENGTH))
    spread = np.exp(_autoregression(0.2 * noise[0], 0.95))
    day = np.sin(2 * np.pi * rows / 288)
    return {
        "walk": 100 + noise[1].cumsum(),
        "white noise": noise[2],
        "season of 37": 10 * np.sin(2 * np.pi * rows / 37) + noise[3],
        "stock": 100 * np.exp(np.cumsum(0.01 * spread * rng.standard_t(4, LENGTH))),
        "counts": rng.poisson(40, LENGTH).astype(float),
        "rare counts": rng.poisson(2, LENGTH).astype(float),
        "heavy tails": rng.standard_t(3, LENGTH),
        "room temperature": np.round(21 + 1.5 * day + _autoregression(0.05 * noise[4], 0.98), 1),
        "room humidity": np.round(50 - 4 * day + _autoregression(0.4 * noise[5], 0.97)),
        "constant": np.full(LENGTH, 5.0),
    }


def simulated() -> Iterator[Recorded]:
    """Return every kind on clocks of a second, five minutes and a day, with gaps, random times, and three rows."""
    rng = np.random.default_rng(SEED)
    for kind, values in simulated_kinds(rng).items():
        for clock, step in (("1 s", SECOND), ("5 min", MINUTES), ("1 day", DAY)):
            yield Recorded(f"{kind}, {clock}", step * np.arange(LENGTH), values)
        kept = rng.random(LENGTH) >= GAPS
        yield Recorded(f"{kind}, gaps", MINUTES * np.arange(LENGTH)[kept], values[kept])
        yield Recorded(f"{kind}, jitter", MINUTES * (np.arange(LENGTH) + rng.uniform(-0.4, 0.4, LENGTH)), values)
    lags = rng.exponential(MINUTES, LENGTH)
    walk = np.cumsum(np.sqrt(lags) * rng.standard_normal(LENGTH))
    yield Recorded("walk, random times", lags.cumsum(), walk)
    yield Recorded("white noise, random times", lags.cumsum(), rng.standard_normal(LENGTH))
    yield Recorded("3 rows", DAY * np.arange(3), np.array([5.0, 6.0, 5.5]))


def load_sets(data: Path) -> dict[str, list[Recorded]]:
    """Return the series of each available set."""
    found = {"simulated": list(simulated())}
    if (data / "nab").is_dir():
        found["nab"] = [Recorded(one.name, one.times, one.values) for one in load_nab(data / "nab")]
    times, columns = read_ett(data)
    if columns:
        hours = HOUR * np.arange(len(times))
        found["ett"] = [Recorded(name, hours, column) for name, column in columns.items()]
    return found


def step_seconds(series: Recorded) -> float:
    """Return the median lag."""
    lags = np.diff(series.times)
    return float(np.median(lags[lags > 0]))


def ask(url: str, series: Recorded) -> Forecasts:
    """Return the forecasts of `/filter` for a series."""
    step = step_seconds(series)
    given = [None if np.isnan(value) else float(value) for value in series.values]
    body = {
        "times": series.times.tolist(), "values": {"y": given}, "fields": ["forecast"], "levels": [LEVEL],
        "horizon": [lead * step for lead in LEADS],
    }  # fmt: skip
    reply = orjson.loads(post(f"{url}/filter", body))
    columns = reply["columns"]

    def stacked(part: str) -> Array:
        return np.array([columns[f"forecast.{lead * step!r}.{part}.y"] for lead in LEADS], np.float64)

    # Without a horizon, forecasts are one step ahead.
    said = {warning["horizon"] or step for warning in reply["warnings"] if warning["code"] != "many_outliers"}
    warns = [lead * step in said for lead in LEADS]
    return Forecasts(stacked("mean"), stacked(f"lower.{LEVEL!r}"), stacked(f"upper.{LEVEL!r}"), warns)


def score(series: Recorded, forecasts: Forecasts) -> list[dict[str, Any]]:
    """Return figures of each horizon."""
    times, values, step = series.times, series.values, step_seconds(series)
    jumps = np.abs(np.diff(values))
    unit = float(np.nanmean(jumps)) if len(jumps) else 0.0
    found = []
    for row, lead in enumerate(LEADS):
        ahead, near = lead * step, 0.5 * step
        target = np.searchsorted(times, times + ahead - near)
        made = np.flatnonzero(target < len(times))
        made = made[np.abs(times[target[made]] - times[made] - ahead) < near]
        made = made[~np.isnan(values[target[made]]) & ~np.isnan(values[made])]
        after, low, high = values[target[made]], forecasts.lower[row, made], forecasts.upper[row, made]
        outside = np.maximum(low - after, 0) + np.maximum(after - high, 0)
        error, last = np.abs(after - forecasts.mean[row, made]), np.abs(after - values[made])
        is_scored = len(made) > 0
        found.append({
            "scored": len(made),
            "warns": forecasts.warns[row],
            "coverage": float(np.mean(outside == 0)) if is_scored else None,
            "error_over_last": float(error.mean() / last.mean()) if is_scored and last.any() else None,
            "interval_score": float(np.mean((high - low + 2 / (1 - LEVEL) * outside)[made >= EARLY]) / unit)
            if np.any(made >= EARLY) and unit > 0
            else None,
        })  # fmt: skip
    return found


def is_inside(lead: int, figure: dict[str, Any]) -> bool:
    """Return whether the figure of a horizon is within its target, if it has enough forecasts."""
    return figure["scored"] < SCORED or bool(abs(figure["coverage"] - LEVEL) <= NEAR[lead])


def measure(sets: dict[str, list[Recorded]], forecast_of: Callable[[Recorded], Forecasts]) -> dict[str, Any]:
    """Return the figures of every series, by set and name."""
    rows: dict[str, Any] = {}
    with tqdm(total=sum(map(len, sets.values())), unit="series", disable=None) as bar:
        for name, series in sets.items():
            rows[name] = {}
            for one in series:
                rows[name][one.name] = score(one, forecast_of(one))
                bar.update()
    return rows


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Return, for each set and horizon, the number of scored figures, how many are within the target, and how many are
    outside or inside with a warning; the mean coverage, and the geometric means of error and interval score.
    """
    found: dict[str, Any] = {}
    for name, series in rows.items():
        found[name] = []
        for lead in range(len(LEADS)):
            counted = [figures[lead] for figures in series.values() if figures[lead]["scored"] >= SCORED]
            inside = [is_inside(lead, figure) for figure in counted]
            found[name].append({
                "figures": len(counted),
                "inside": sum(inside),
                "warned": sum(figure["warns"] and not held for figure, held in zip(counted, inside, strict=True)),
                "false_warnings": sum(figure["warns"] and held for figure, held in zip(counted, inside, strict=True)),
                "coverage": float(np.mean([figure["coverage"] for figure in counted])),
                "error_over_last": _middle([figure["error_over_last"] for figure in counted]),
                "interval_score": _middle([figure["interval_score"] for figure in counted]),
            })  # fmt: skip
    return found


def _middle(ratios: list[float | None]) -> float:
    """Return the geometric mean of the nonzero values."""
    return float(np.exp(np.mean([np.log(ratio) for ratio in ratios if ratio])))


def main() -> None:
    """Run, print and write the file."""
    given = parser(__doc__, "auto-coverage", needs_data=True).parse_args()
    sets = load_sets(given.data)
    longest = max(len(one.times) for series in sets.values() for one in series)
    with started([], {"max_observations": longest}) as target:
        rows = measure(sets, partial(ask, target.url))
    command = "python -m rfa.benchmarks.filters.auto_coverage --data DATA"
    document = {**origin(command), "level": LEVEL, "leads": LEADS, "summary": summary(rows), "rows": rows}
    finish("auto-coverage", given.out, document)


if __name__ == "__main__":
    main()
