"""`rfa bench filter-accuracy`: accuracy, robustness and calibration of the linear filter on simulated systems.

`LinearFilter` in float64 is compared with the filters of `references.py`, without calibration of intervals. Settings
were tuned on other seeds than the scored ones. Standard errors are over streams; those of comparisons over paired
differences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from rfa.benchmarks.filters.accuracy_bars import BEST_PUBLISHED, SPIKED, bars
from rfa.benchmarks.filters.references import RIVALS, Estimate, run_kalman
from rfa.benchmarks.filters.settings import (
    ROTATION,
    SHIFT_AT,
    TRACKING,
    Streams,
    rotation,
    rotation_drift,
    tracking,
)
from rfa.measured import origin, write_result
from rfa.model.linear_filter import LinearFilter
from rfa.model.recurrence.dense import propagate
from rfa.model.state_filter import Token
from rfa.runtime.filters.linear_config import LinearFilterConfig, Matrix
from rfa.runtime.filters.linear_config import Rule as WeightRule

LEVELS = (0.5, 0.8, 0.9, 0.95)
JUMPS = (20.0, 50.0, 200.0)
# A jump is followed when both positions are within this of the truth for this many observations.
FOLLOWED, FOLLOWED_STEPS = 5.0, 5
NU_GRID = (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 12.0)
TUNING_SEED, TEST_SEED = 41_000, 98_000
TUNING_TRIALS, TUNING_STEPS = 60, 500
SHIFT_STEPS = 500
# Steps of the error after a jump in the figure.
TRACE_STEPS = 80
# Variance of a known initial state, because a covariance must be positive definite.
JITTER = 1e-9

TUNED_ON = ("clean", *SPIKED, *BEST_PUBLISHED)


class Rule(NamedTuple):
    """Settings that distinguish the linear filters."""

    nu: float | None = LinearFilterConfig.nu
    reacquire: int | None = LinearFilterConfig.reacquire
    rule: WeightRule = LinearFilterConfig.rule


class Figure(NamedTuple):
    """A measured value and its standard error."""

    value: float
    error: float


class GivenSteps(LinearFilter):
    """The linear filter with F and Q given for every step, `[B or 1, n, n]`, instead of from a drift."""

    def __init__(self, config: LinearFilterConfig) -> None:
        super().__init__(config)
        self.given: tuple[Tensor, Tensor] | None = None

    def predict(self, mean: Tensor, covariance: Tensor, dt: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if self.given is None:
            raise ValueError("given must be set before every step")
        f, q = self.given
        return f, q, *propagate(mean, covariance, f, q)


def _rows(matrix: np.ndarray) -> Matrix:
    return tuple(tuple(float(x) for x in row) for row in matrix)


def _double(kind: type[LinearFilter], config: LinearFilterConfig) -> Any:
    """Return a filter whose constants were never rounded to float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return kind(config).eval()
    finally:
        torch.set_default_dtype(before)


def _config(case: Streams, rule: Rule) -> LinearFilterConfig:
    n = len(case.mean)
    continuous = case.times is not None
    return LinearFilterConfig(
        drift=_rows(rotation_drift() if continuous else -np.eye(n)),
        process_noise=_rows(np.eye(n)),
        measurement_noise=_rows(case.noise),
        observation=_rows(case.matrix),
        nu=rule.nu,
        reacquire=rule.reacquire,
        rule=rule.rule,
        initial_mean=tuple(case.mean.tolist()),
        initial_covariance=_rows(case.covariance + JITTER * np.eye(n)),
    )


@torch.no_grad()
def run_model(case: Streams, rule: Rule, *, absent: float = np.nan) -> Estimate:
    """Run the filter over a case, with all trials as one batch. Missing values are replaced by `absent`."""
    trials, steps, n = case.truth.shape
    model = _double(LinearFilter if case.times is not None else GivenSteps, _config(case, rule))
    seen = np.isfinite(case.observations)
    y = torch.from_numpy(np.where(seen, case.observations, absent))
    present = torch.from_numpy(seen.astype(np.float64))
    times = np.zeros((trials, steps)) if case.times is None else case.times
    lags = torch.from_numpy(np.diff(times, axis=1, prepend=times[:, :1]))
    one, state = torch.ones(trials, dtype=torch.float64), model.init_state(trials)
    mean, covariance = np.empty((trials, steps, n)), np.empty((trials, steps, n, n))
    for i in range(steps):
        if isinstance(model, GivenSteps):
            model.given = torch.from_numpy(case.transition[i].copy()), torch.from_numpy(case.process[i].copy())
        output, state = model.step(Token(y[:, i], present[:, i], lags[:, i], one), state)
        mean[:, i], covariance[:, i] = output.state_mean.numpy(), output.state_covariance.numpy()
    return Estimate(mean, covariance)


def _mean(values: np.ndarray) -> Figure:
    """Return the mean over the streams `[B]`."""
    return Figure(float(values.mean()), float(values.std() / np.sqrt(len(values))))


def squares(case: Streams, found: Estimate) -> np.ndarray:
    """Return the mean square error of the scored components of every stream, `[B]`."""
    error = (found.mean - case.truth)[..., : case.scored]
    return np.asarray((error**2).mean((1, 2)))


def _ratio(squared: np.ndarray, reference: np.ndarray) -> Figure:
    """Return the ratio of two root mean squares. Its variance is that of the paired difference, to first order."""
    a, b = squared.mean(), reference.mean()
    ratio = np.sqrt(a / b)
    return Figure(float(ratio), float(ratio / 2 * _mean(squared / a - reference / b).error))


def score(case: Streams, found: Estimate, references: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return error, NLL, NEES/n, coverage, 90 % width, and the error relative to each reference in `squares`."""
    n = case.truth.shape[-1]
    error = found.mean - case.truth
    nees = np.einsum("bti,bti->bt", error, np.linalg.solve(found.covariance, error[..., None])[..., 0])
    log_det = np.linalg.slogdet(found.covariance)[1]
    deviation = np.sqrt(np.einsum("btii->bti", found.covariance))
    quantiles = {level: NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS}
    inside = {f"{level:g}": _mean((np.abs(error) <= z * deviation).mean((1, 2))) for level, z in quantiles.items()}
    squared = squares(case, found)
    root = float(np.sqrt(squared.mean()))
    return {
        "rmse": root,
        "rmse_error": _mean(squared).error / (2 * root),
        **{f"over_{name}": _excess(squared, reference) for name, reference in references.items()},
        "nll": float(np.mean(0.5 * (nees + log_det + n * np.log(2 * np.pi)))),
        "nees": float(nees.mean() / n),
        "coverage": {level: share.value for level, share in inside.items()},
        "coverage_error": {level: share.error for level, share in inside.items()},
        "width90": float(2 * quantiles[0.9] * deviation[..., : case.scored].mean()),
    }


def _excess(squared: np.ndarray, reference: np.ndarray) -> list[float]:
    """Return the relative excess of one root mean square over another, and its standard error."""
    ratio = _ratio(squared, reference)
    return [ratio.value - 1, ratio.error]


def delays(case: Streams, found: Estimate) -> np.ndarray:
    """Return the number of observations from the jump until it is followed, `[B]`, inf if it never is."""
    error = np.abs(found.mean - case.truth)[:, SHIFT_AT:, : case.scored].max(-1)
    windows = np.lib.stride_tricks.sliding_window_view(error < FOLLOWED, FOLLOWED_STEPS, axis=1)
    inside: np.ndarray = np.asarray(windows.all(-1))
    return np.where(inside.any(1), inside.argmax(1), np.inf)


class Progress:
    """A progress bar of the runs of a filter, with their duration."""

    def __init__(self, total: int) -> None:
        self.bar = tqdm(total=total, disable=None)
        self.start = time.perf_counter()

    def __call__(self, label: str) -> None:
        self.bar.set_description(label)
        self.bar.update()

    def seconds(self) -> float:
        return round(time.perf_counter() - self.start, 1)


def _root(case: Streams, found: Estimate) -> float:
    return float(np.sqrt(squares(case, found).mean()))


def tuning_table(done: Callable[[str], None]) -> dict[str, dict[str, dict[str, float]]]:
    """Return RMSE by scenario, filter and setting on the tuning seeds, which chose the default and tuned rows."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for k, name in enumerate(TUNED_ON):
        case = tracking(name, TUNING_TRIALS, TUNING_STEPS, TUNING_SEED + k)
        done(f"tuning {name}")
        table[name] = {
            "oracle": {"": _root(case, run_kalman(case, knows_noise=True))},
            "linear": {f"{nu:g}": _root(case, run_model(case, Rule(nu))) for nu in NU_GRID},
        }
        for rival, (make, grid) in RIVALS.items():
            table[name][rival] = {f"{x:g}": _root(case, run_kalman(case, weigh=make(x))) for x in grid}
    return table


def tuned_settings(table: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the best setting of every filter: that of outliers x10 for those and clean data, else the scenario's."""
    own = {name: name if name in BEST_PUBLISHED else SPIKED[0] for name in table}
    return {
        name: {label: float(min(row, key=lambda x: row[x])) for label, row in table[source].items() if len(row) > 1}
        for name, source in own.items()
    }


def tracking_rows(
    trials: int, steps: int, tuned: Mapping[str, Mapping[str, float]], done: Callable[[str], None]
) -> dict[str, Any]:
    """Return all scenarios of the plane. The rivals and one filter use the setting tuned for the scenario."""
    rows: dict[str, Any] = {}
    for k, name in enumerate(TRACKING):
        case = tracking(name, trials, steps, TEST_SEED + k)
        rules = {"linear": Rule(), "linear, learned": Rule(rule="learned"), "linear, nu = inf": Rule(nu=None)}
        rivals = {}
        if name in tuned:
            rivals = {label: run_kalman(case, weigh=make(tuned[name][label])) for label, (make, _) in RIVALS.items()}
        if name in BEST_PUBLISHED:
            rules["linear, nu tuned"] = Rule(tuned[name]["linear"])
        else:
            rules["linear, no re-acquisition"] = Rule(reacquire=None)
        rows[name] = compared(case, rules, rivals)
        done(f"tracking {name}")
    return rows


def rotation_rows(trials: int, steps: int, done: Callable[[str], None]) -> dict[str, Any]:
    """Return the isotropic system at irregular times."""
    rows: dict[str, Any] = {}
    for k, name in enumerate(ROTATION):
        case = rotation(name, trials, steps, TEST_SEED + 100 + k)
        rows[name] = compared(case, {"linear": Rule(), "linear, learned": Rule(rule="learned")}, {})
        done(f"rotation {name}")
    return rows


def compared(case: Streams, rules: Mapping[str, Rule], rivals: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return scores of the oracle, the Kalman filter, the rivals, and the filter with several rules."""
    oracle, kalman = run_kalman(case, knows_noise=True), run_kalman(case)
    references = {"oracle": squares(case, oracle), "kalman": squares(case, kalman)}
    references |= {name: squares(case, found) for name, found in rivals.items()}
    others = {"oracle": oracle, "kalman": kalman, **rivals}
    rows = {name: score(case, found, {}) for name, found in others.items()}
    return rows | {name: score(case, run_model(case, rule), references) for name, rule in rules.items()}


def shift_rows(trials: int, done: Callable[[str], None]) -> dict[str, Any]:
    """Return delays after a jump, and the median over the streams of the larger position error at each step."""
    rows: dict[str, Any] = {}
    for k, jump in enumerate(JUMPS):
        case = tracking("clean", trials, SHIFT_AT + SHIFT_STEPS, TEST_SEED + 300 + k, jump=jump)
        rules = {"linear": Rule(), "linear, learned": Rule(rule="learned")}
        rules["linear, no re-acquisition"] = Rule(reacquire=None)
        found = {"kalman": run_kalman(case)} | {name: run_model(case, rule) for name, rule in rules.items()}
        rows[f"{jump:g}"] = {
            name: _delay_figures(delays(case, estimate)) | {"error": _error_after(case, estimate)}
            for name, estimate in found.items()
        }
        done(f"jump of {jump:g}")
    return rows


def _delay_figures(values: np.ndarray) -> dict[str, float | None]:
    """Return median and 95 % quantile in observations (None: not within the run), and the median's standard error.

    The error is half the distance of the order statistics one standard deviation of the rank below and above the
    median.
    """
    ordered = np.sort(values)
    rank, half = (len(ordered) - 1) / 2, np.sqrt(len(ordered)) / 2
    low, high = (ordered[int(np.clip(np.rint(at), 0, len(ordered) - 1))] for at in (rank - half, rank + half))
    points = {name: np.quantile(ordered, q, method="lower") for name, q in (("median", 0.5), ("p95", 0.95))}
    points["median_error"] = (high - low) / 2 if np.isfinite(high) else np.inf
    return {name: float(x) if np.isfinite(x) else None for name, x in points.items()}


def _error_after(case: Streams, found: Estimate) -> list[float]:
    error = np.abs(found.mean - case.truth)[:, SHIFT_AT : SHIFT_AT + TRACE_STEPS, : case.scored].max(-1)
    return [round(float(x), 3) for x in np.median(error, axis=0)]


def write_filter_accuracy(out: Path, *, trials: int = 500, steps: int = 1000) -> dict[str, Any]:
    """Measure everything and write it to a JSON file."""
    done = Progress(len(TUNED_ON) + len(TRACKING) + len(ROTATION) + len(JUMPS))
    tuning = tuning_table(done)
    tuned = tuned_settings(tuning)
    document: dict[str, Any] = {
        **origin("rfa bench filter-accuracy"),
        "trials": trials,
        "steps": steps,
        "rule": Rule()._asdict() | {"inner": LinearFilterConfig.inner, "tuned": tuned},
        "tuning": tuning,
        "tracking": tracking_rows(trials, steps, tuned, done),
        "rotation": rotation_rows(max(1, trials * 3 // 5), steps, done),
        "level_shift": shift_rows(trials, done),
    }
    document["seconds"] = done.seconds()
    document["bars"] = bars(document)
    write_result(out, document)
    return document
