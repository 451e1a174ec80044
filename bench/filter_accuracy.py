"""How accurate, robust and calibrated the linear filter is: simulated systems beside a Kalman filter and an oracle.

    rfa bench filter-accuracy     writes bench/results/filter-accuracy.json and prints tables

The filter is `LinearFilter`, in float64, with its default weights and its rule for jumps; on systems of discrete time F
and Q of every step are given to its own `step`. The Kalman filter and the oracle (which knows the noise of every
observation) are written here in numpy and share no line with it. Intervals are the model's, not calibrated. The
default nu was chosen on the tuning seeds, whose table is in the file; everything else is on other seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from bench.filter_settings import (
    CANONICAL_DB,
    ROTATION,
    SHIFT_AT,
    TRACKING,
    Case,
    canonical,
    rotation,
    rotation_drift,
    tracking,
)
from bench.hardware import hardware
from model.linear_filter import LinearFilter, LinearFilterConfig, Matrix
from model.recurrence.dense import propagate
from training.commit import git_commit

LEVELS = (0.5, 0.8, 0.9, 0.95)
JUMPS = (20.0, 50.0, 200.0)
# A jump is followed when both positions are within this of the truth for so many observations.
FOLLOWED, FOLLOWED_STEPS = 5.0, 5
NU_GRID = (3.0, 4.0, 6.0, 8.0, 12.0)
TUNING_SEED, TEST_SEED = 41_000, 97_000
TUNING_TRIALS, TUNING_STEPS = 60, 300
SHIFT_STEPS = 500
# A covariance must be positive definite; this one is a known state.
KNOWN = 1e-9

# Floors of the exact Kalman filter in dB, by the Riccati equation, and the best rows of the survey's table of robust
# filters, each tuned for the scenario.
CANONICAL_FLOOR = {0: -1.922, -10: -4.706, -20: -7.322}
BEST_KNOWN = {"Student-t": 1.524, "mixture": 1.286}


class Rule(NamedTuple):
    """What distinguishes one linear filter from another here."""

    nu: float | None = LinearFilterConfig.nu
    reacquire: int | None = LinearFilterConfig.reacquire


@dataclass(frozen=True)
class Estimate:
    """mean `[B, T, n]`, covariance `[B, T, n, n]` of the state after every observation."""

    mean: np.ndarray
    covariance: np.ndarray


class GivenSteps(LinearFilter):
    """The linear filter with F and Q given for every step, `[B or 1, n, n]`, in place of those of a drift."""

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
    """A filter whose constants were never rounded to float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return kind(config).eval()
    finally:
        torch.set_default_dtype(before)


def _config(case: Case, rule: Rule) -> LinearFilterConfig:
    n = len(case.mean)
    continuous = case.times is not None
    return LinearFilterConfig(
        drift=_rows(rotation_drift() if continuous else -np.eye(n)),
        process_noise=_rows(np.eye(n)),
        measurement_noise=_rows(case.noise),
        observation=_rows(case.matrix),
        nu=rule.nu,
        reacquire=rule.reacquire,
        initial_mean=tuple(case.mean.tolist()),
        initial_covariance=_rows(case.covariance + KNOWN * np.eye(n)),
    )


@torch.no_grad()
def run_model(case: Case, rule: Rule) -> Estimate:
    """The project's filter over a case."""
    trials, steps, n = case.truth.shape
    model = _double(LinearFilter if case.times is not None else GivenSteps, _config(case, rule))
    seen = np.isfinite(case.observations)
    y, present = torch.from_numpy(np.where(seen, case.observations, 0.0)), torch.from_numpy(seen.astype(np.float64))
    times = np.zeros((trials, steps)) if case.times is None else case.times
    lags = torch.from_numpy(np.diff(times, axis=1, prepend=times[:, :1]))
    one, state = torch.ones(trials, dtype=torch.float64), model.init_state(trials)
    mean, covariance = np.empty((trials, steps, n)), np.empty((trials, steps, n, n))
    for i in range(steps):
        if isinstance(model, GivenSteps):
            model.given = torch.from_numpy(case.transition[i].copy()), torch.from_numpy(case.process[i].copy())
        output, state = model.step(y[:, i], present[:, i], lags[:, i], one, state)
        mean[:, i], covariance[:, i] = output.state_mean.numpy(), output.state_covariance.numpy()
    return Estimate(mean, covariance)


def run_kalman(case: Case, *, knows_noise: bool = False) -> Estimate:
    """The textbook Kalman filter with missing components; the oracle is told the noise of every observation."""
    trials, steps, n = case.truth.shape
    mean, covariance = np.tile(case.mean, (trials, 1)), np.tile(case.covariance, (trials, 1, 1))
    means, covariances = np.empty((trials, steps, n)), np.empty((trials, steps, n, n))
    eye = np.eye(case.matrix.shape[0])
    for i in range(steps):
        f, q = case.transition[i], case.process[i]
        mean, covariance = np.einsum("bij,bj->bi", np.broadcast_to(f, (trials, n, n)), mean), f @ covariance @ f.mT + q
        seen = np.isfinite(case.observations[:, i])
        # An absent component: a zero row of C, a zero innovation, and any variance.
        c, r = (
            np.where(seen[:, :, None], case.matrix, 0.0),
            np.where(seen[:, :, None] & seen[:, None, :], case.noise, 0.0),
        )
        if knows_noise:
            c, r = c * case.matrix_factor[:, i, None, None], r * case.noise_factor[:, i, None, None]
        r = r + np.where(seen, 0.0, 1.0)[:, :, None] * eye
        error = np.where(seen, case.observations[:, i], 0.0) - np.einsum("bij,bj->bi", c, mean)
        gain = covariance @ c.mT @ np.linalg.inv(c @ covariance @ c.mT + r)
        mean, covariance = mean + np.einsum("bij,bj->bi", gain, error), covariance - gain @ c @ covariance
        covariance = (covariance + covariance.mT) / 2
        means[:, i], covariances[:, i] = mean, covariance
    return Estimate(means, covariances)


def score(case: Case, found: Estimate) -> dict[str, Any]:
    """Error of the scored components, and how the covariance fits the errors of all: NLL, NEES/n, coverage; the full
    width of the scored components' 90 % intervals."""
    n = case.truth.shape[-1]
    error = found.mean - case.truth
    nees = np.einsum("bti,bti->bt", error, np.linalg.solve(found.covariance, error[..., None])[..., 0])
    log_det = np.linalg.slogdet(found.covariance)[1]
    deviation = np.sqrt(np.einsum("btii->bti", found.covariance))
    quantiles = {level: NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS}
    return {
        "rmse": float(np.sqrt(np.mean(error[..., : case.scored] ** 2))),
        "nll": float(np.mean(0.5 * (nees + log_det + n * np.log(2 * np.pi)))),
        "nees": float(nees.mean() / n),
        "coverage": {f"{level:g}": float(np.mean(np.abs(error) <= z * deviation)) for level, z in quantiles.items()},
        "width90": float(2 * quantiles[0.9] * deviation[..., : case.scored].mean()),
    }


def delays(case: Case, found: Estimate) -> np.ndarray:
    """Observations from the jump until it is followed, `[B]`; inf where it never is."""
    error = np.abs(found.mean - case.truth)[:, SHIFT_AT:, : case.scored].max(-1)
    windows = np.lib.stride_tricks.sliding_window_view(error < FOLLOWED, FOLLOWED_STEPS, axis=1)
    inside: np.ndarray = np.asarray(windows.all(-1))
    return np.where(inside.any(1), inside.argmax(1), np.inf)


def references(case: Case) -> dict[str, Any]:
    """What stands beside the filter."""
    return {"oracle": score(case, run_kalman(case, knows_noise=True)), "kalman": score(case, run_kalman(case))}


def tuning_table() -> dict[str, dict[str, float]]:
    """RMSE by nu and scenario on the tuning seeds; what the default and the tuned rows were chosen with."""
    cases = {
        name: tracking(name, TUNING_TRIALS, TUNING_STEPS, TUNING_SEED + k)
        for k, name in enumerate(TRACKING)
        if "missing" not in name
    }
    table = {
        name: {f"{nu:g}": score(case, run_model(case, Rule(nu)))["rmse"] for nu in NU_GRID}
        for name, case in cases.items()
    }
    for name, case in cases.items():
        table[name]["oracle"] = score(case, run_kalman(case, knows_noise=True))["rmse"]
    return table


def tracking_rows(trials: int, steps: int, tuned: Mapping[str, float], bar: Callable[[str], None]) -> dict[str, Any]:
    """All scenarios of the plane; where the scenario has a nu tuned for it, that filter too."""
    rows: dict[str, Any] = {}
    for k, name in enumerate(TRACKING):
        bar(f"tracking {name}")
        case = tracking(name, trials, steps, TEST_SEED + k)
        rules = {"linear": Rule(), "linear, no re-acquisition": Rule(reacquire=None), "linear, nu = inf": Rule(nu=None)}
        if name in BEST_KNOWN:
            rules["linear, nu tuned"] = Rule(tuned[name])
        rows[name] = references(case) | {label: score(case, run_model(case, rule)) for label, rule in rules.items()}
    return rows


def rotation_rows(trials: int, steps: int, bar: Callable[[str], None]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for k, name in enumerate(ROTATION):
        bar(f"rotation {name}")
        case = rotation(name, trials, steps, TEST_SEED + 100 + k)
        rules = {"linear": Rule(), "linear, no re-acquisition": Rule(reacquire=None)}
        rows[name] = references(case) | {label: score(case, run_model(case, rule)) for label, rule in rules.items()}
    return rows


def canonical_rows(trials: int, bar: Callable[[str], None]) -> dict[str, Any]:
    """Mean square error in dB of the Kalman filter that nu = inf is, beside the floor."""
    rows = {}
    for k, v_db in enumerate(CANONICAL_DB):
        bar(f"canonical {v_db} dB")
        case = canonical(v_db, trials, TEST_SEED + 200 + k)
        found = run_model(case, Rule(nu=None))
        # The error that the filter states for itself is the floor without the noise of a simulation.
        stated = np.einsum("btii->bti", found.covariance).mean()
        decibel = {"linear, nu = inf": score(case, found)["rmse"] ** 2, "its own covariance": float(stated)}
        rows[str(v_db)] = {name: 10 * float(np.log10(value)) for name, value in decibel.items()}
        rows[str(v_db)]["floor"] = CANONICAL_FLOOR[v_db]
    return rows


def shift_rows(trials: int, bar: Callable[[str], None]) -> dict[str, Any]:
    """Median and 95 % point of the delays after a jump, in observations (null = not within the run)."""
    rows: dict[str, Any] = {}
    for k, jump in enumerate(JUMPS):
        bar(f"jump of {jump:g}")
        case = tracking("clean", trials, SHIFT_AT + SHIFT_STEPS, TEST_SEED + 300 + k, jump=jump)
        found = {
            "kalman": run_kalman(case),
            "linear": run_model(case, Rule()),
            "linear, no re-acquisition": run_model(case, Rule(reacquire=None)),
        }
        rows[f"{jump:g}"] = {name: _quantiles(delays(case, estimate)) for name, estimate in found.items()}
    return rows


def _quantiles(values: np.ndarray) -> dict[str, float | None]:
    points = np.quantile(values, (0.5, 0.95), method="lower")
    return {name: float(x) if np.isfinite(x) else None for name, x in zip(("median", "p95"), points, strict=True)}


def coverage_error(row: Mapping[str, Any]) -> float:
    """Largest |coverage - level|."""
    return max(abs(share - float(level)) for level, share in row["coverage"].items())


def bars(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every target with the measured value."""
    plane, turning = document["tracking"], document["rotation"]

    def over(name: str, reference: str) -> float:
        return float(plane[name]["linear"]["rmse"] / plane[name][reference]["rmse"] - 1)

    found = [("clean, error over the Kalman filter's", over("clean", "kalman"), 0.01)]
    found += [(f"{name}, error over the oracle's", over(name, "oracle"), 0.03) for name in ("5 % x10", "5 % x20")]
    for name, best in BEST_KNOWN.items():
        found.append((f"{name}, error", plane[name]["linear"]["rmse"], best))
        found.append((f"{name}, error with nu tuned for it", plane[name]["linear, nu tuned"]["rmse"], best))
    for name, row in document["canonical"].items():
        found.append(
            (f"canonical {name} dB, distance from the floor", abs(row["linear, nu = inf"] - row["floor"]), 0.05)
        )
    for label, rows in (("tracking", plane), ("rotation", turning)):
        found += [
            (f"{label} {name}, coverage error", coverage_error(rows[name]["linear"]), 0.01)
            for name in ("clean", "5 % x10", "5 % x20")
        ]
    for jump, row in document["level_shift"].items():
        late = [row[name]["median"] if row[name]["median"] is not None else np.inf for name in ("linear", "kalman")]
        found.append((f"jump of {jump}, median delay over the Kalman filter's", late[0] / late[1], 2.0))
    return [
        {"name": name, "value": float(value), "bar": bar, "is_met": bool(value <= bar)} for name, value, bar in found
    ]


def table(document: Mapping[str, Any]) -> list[str]:
    """Markdown."""
    lines = []
    for key in ("tracking", "rotation"):
        lines += [
            f"| {key} | filter | RMSE | NLL | NEES/n | coverage 50 / 80 / 90 / 95 | width 90 |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, rows in document[key].items():
            for label, row in rows.items():
                shares = " / ".join(f"{share:.3f}" for share in row["coverage"].values())
                numbers = f"{row['rmse']:.3f} | {row['nll']:.3f} | {row['nees']:.3f} | {shares} | {row['width90']:.2f}"
                lines.append(f"| {name} | {label} | {numbers} |")
        lines.append("")
    lines += ["| jump | filter | median delay | 95 % |", "|---|---|---|---|"]
    for jump, rows in document["level_shift"].items():
        lines += [f"| {jump} | {label} | {row['median']} | {row['p95']} |" for label, row in rows.items()]
    lines += ["", "| bar | value | at most | met |", "|---|---|---|---|"]
    return lines + [
        f"| {bar['name']} | {bar['value']:.4g} | {bar['bar']:g} | {'yes' if bar['is_met'] else 'no'} |"
        for bar in document["bars"]
    ]


def write_filter_accuracy(out: Path, *, trials: int = 500, steps: int = 1000) -> dict[str, Any]:
    """Measure everything and write it to a JSON file."""
    tuning = tuning_table()
    tuned = {name: min(NU_GRID, key=lambda nu: tuning[name][f"{nu:g}"]) for name in BEST_KNOWN}
    with tqdm(total=len(TRACKING) + len(ROTATION) + len(CANONICAL_DB) + len(JUMPS), disable=None) as progress:

        def advance(label: str) -> None:
            progress.set_description(label)
            progress.update()

        document: dict[str, Any] = {
            "commit": git_commit(),
            "hardware": hardware(),
            "trials": trials,
            "steps": steps,
            "rule": Rule()._asdict() | {"inner": LinearFilterConfig.inner, "nu_tuned": tuned},
            "tuning": tuning,
            "tracking": tracking_rows(trials, steps, tuned, advance),
            "rotation": rotation_rows(max(1, trials * 3 // 5), steps, advance),
            "canonical": canonical_rows(20 * trials, advance),
            "level_shift": shift_rows(trials, advance),
        }
    document["bars"] = bars(document)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    return document
