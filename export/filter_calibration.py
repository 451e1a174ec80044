"""Calibrate a filter on validation data. The results are variance scales, and split-conformal quantiles per level and
horizon.

The calibration of each mode contains:

    state      multipliers of the model's std per level: conformal on the simulated truth or, for recorded data, the
               normal quantile times the scale of the one-step innovations
    forecast   multipliers of the forecasts' std per level and horizon, conformal on held-out observations
    anomaly    quantiles of the novelty (Wilson-Hilferty of the nis) and the scale of its upper tail
    confidence coverage of the next observation's 0.9 interval, by the running mean of the novelty before it
    precision  calibrated variance on simulated truth, if there is one (precision_calibration.py)

For exchangeable data, quantiles from n scores result in a coverage in [level, level + 1/(n + 1)].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch

from rfa.export.precision_calibration import precision_tables
from rfa.model.batch import Batch
from rfa.model.linear_filter import LinearFilter
from rfa.model.state_filter import Sequences, State, StateFilter
from rfa.runtime.bundle.novelty import running_novelty, wilson_hilferty
from rfa.runtime.text.config import MODES, Mode, in_mode

LEVELS = (0.5, 0.8, 0.9, 0.95)
LEADS = (1, 2, 5, 10, 20)
ONE_SIGMA = 0.6827
ANOMALY_SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
CONFIDENCE_BINS = 8
# Maximum number of values in the forecasts that are computed at once.
FORECAST_NUMBERS = 2_000_000
# Number of initial steps of a stream that are ignored, because they depend on the prior.
BURN_IN = 1
# Ratio of the error variance to the predicted variance above which a warning is given: three times the std. The default
# bundles have 0.7 to 1.
FAR = 9.0


class Evaluation(NamedTuple):
    """Results of one mode for a batch.

    Attributes:
        mean, deviation: Estimates and their standard deviations, `[B, N, P]`.
        nis: Normalised innovation squared, `[B, N]`.
        present: Whether a component was observed, `[B, N, P]`.
        forecast_mean, forecast_deviation: Forecasts and their standard deviations, `[lead, B, N, P]`. The index N is
            that of the predicted step.
        leads: Numbers of observations from the origin of a forecast to the predicted observation.
        horizons: Typical durations of the leads, in the unit of the times.
        gain: Ratio of the traces of the state covariance and the innovation covariance, `[B, N]`.
    """

    mean: np.ndarray
    deviation: np.ndarray
    nis: np.ndarray
    present: np.ndarray
    forecast_mean: np.ndarray
    forecast_deviation: np.ndarray
    leads: tuple[int, ...]
    horizons: tuple[float, ...]
    gain: np.ndarray


@torch.no_grad()
def evaluate(model: StateFilter, batch: Batch, mode: Mode, leads: tuple[int, ...] = LEADS) -> Evaluation:
    """Filter a batch, forecast every observation from the states before it, and return the results.

    Forecasts are NaN where the state `lead` observations earlier does not exist.

    Args:
        model: Filter to evaluate.
        batch: Streams of observations.
        mode: Mode of the filter: "attention" or "recurrent".
        leads: Numbers of observations to forecast ahead. Leads that are not shorter than a stream are ignored.
    """
    y, present, times = batch.tensors()
    size, length, components = y.shape
    usable = tuple(lead for lead in leads if lead < length)
    means, deviations, nis, gains = [], [], [], []
    forecasts = np.full((2, len(usable), size, length, components), np.nan)
    states: list[State] = []
    # A forecast needs a state covariance for each origin and horizon.
    most = max(1, FORECAST_NUMBERS // max(1, model.init_state(size)["covariance"].numel() * len(usable)))
    with in_mode(model, mode):
        for i, (output, state) in enumerate(model.walk(Sequences(y, present, times))):
            means.append(output.mean)
            deviations.append(torch.diagonal(output.covariance, dim1=-2, dim2=-1).clamp(min=0).sqrt())
            nis.append(output.nis)
            traces = (
                torch.diagonal(part, dim1=-2, dim2=-1).sum(-1)
                for part in (output.covariance, output.innovation_covariance)
            )
            gains.append(torch.div(*traces))
            states.append(state)
            if len(states) == most or i + 1 == length:
                _forecast_from(model, states, i + 1 - len(states), times, usable, forecasts)
                states.clear()
    step = np.diff(batch.times, axis=1)
    unit = float(np.median(step[step > 0])) if (step > 0).any() else 1.0
    mean_all, deviation_all, nis_all, gain = (
        torch.stack(x, 1).double().numpy() for x in (means, deviations, nis, gains)
    )
    horizons = tuple(unit * lead for lead in usable)
    return Evaluation(
        mean_all, deviation_all, nis_all, present.numpy() > 0, forecasts[0], forecasts[1], usable, horizons, gain
    )


def _forecast_from(
    model: StateFilter,
    states: list[State],
    first: int,
    times: torch.Tensor,
    leads: tuple[int, ...],
    forecasts: np.ndarray,
) -> None:
    """Compute forecasts from `states`, which follow the observations from index `first` on. Write them into `forecasts`
    at the steps that they predict."""
    if not leads:
        return
    size, length = times.shape
    origins = torch.arange(first, first + len(states))
    targets = origins[:, None] + torch.tensor(leads)
    ends = targets.clamp(max=length - 1)
    horizons = (times[:, ends] - times[:, origins, None]).float().flatten(0, 1)
    # On a regular grid, transitions are computed once, because computing them costs more than applying them.
    is_regular = bool((horizons == horizons[:1]).all())
    merged = {name: torch.stack([state[name] for state in states], dim=1).flatten(0, 1) for name in states[0]}
    mean, covariance = model.forecast(merged, horizons[0] if is_regular else horizons)
    spread = torch.diagonal(covariance, dim1=-2, dim2=-1).sqrt()
    for k in range(len(leads)):
        is_observed = targets[:, k] < length
        for part, values in zip(forecasts, (mean, spread), strict=True):
            found = values[:, k].unflatten(0, (size, len(states)))
            part[k][:, targets[is_observed, k].numpy()] = found[:, is_observed].numpy()


def conformal(scores: np.ndarray, levels: tuple[float, ...]) -> list[float]:
    """Return the split-conformal quantile of scores at each level. For n scores, it is the ceil((n + 1) level)-th
    smallest one."""
    ordered = np.sort(scores)
    n = len(ordered)
    if n == 0:
        raise ValueError("the calibration needs observations, but the validation data contain none")
    return [float(ordered[min(n, math.ceil((n + 1) * level)) - 1]) for level in levels]


def calibrate_mode(model: StateFilter, batch: Batch, mode: Mode, leads: tuple[int, ...] = LEADS) -> dict[str, Any]:
    """Return the calibration of one mode.

    Args:
        model: Filter to calibrate.
        batch: Validation data.
        mode: Mode of the filter: "attention" or "recurrent".
        leads: Numbers of observations to forecast ahead, in ascending order.
    """
    found = evaluate(model, batch, mode, leads)
    quantiles, scales = [], []
    for k in range(len(found.leads)):
        error = np.abs(batch.observations - found.forecast_mean[k]) / found.forecast_deviation[k]
        scores = error[:, BURN_IN:][np.isfinite(error[:, BURN_IN:])]
        quantiles.append(conformal(scores, LEVELS))
        scales.append(conformal(scores, (ONE_SIGMA,))[0] ** 2)
    if batch.truth is not None:
        error = (np.abs(batch.truth - found.mean) / found.deviation)[:, BURN_IN:].ravel()
        state = {
            "source": "simulated truth",
            "multipliers": conformal(error, LEVELS),
            "variance_scale": conformal(error, (ONE_SIGMA,))[0] ** 2,
        }
    else:
        normal = NormalDist()
        state = {
            "source": "one-step innovations",
            "multipliers": [math.sqrt(scales[0]) * normal.inv_cdf((1 + level) / 2) for level in LEVELS],
            "variance_scale": scales[0],
        }
    z, running = surprises(found)
    seen = found.present.any(-1)
    # The scale of the tail is estimated from the upper half of the novelties, so that a few outliers do not change it.
    table = np.quantile(z[seen], ANOMALY_SHARES)
    middle, upper = np.quantile(z[seen], (0.5, 0.9))
    return {
        "levels": list(LEVELS),
        "state": state,
        "forecast": {"horizons": list(found.horizons), "multipliers": quantiles, "variance_scale": scales},
        "anomaly": {
            "shares": list(ANOMALY_SHARES),
            "quantiles": table.tolist(),
            "tail_scale": float(max((upper - middle) / NormalDist().inv_cdf(0.9), 1e-3)),
        },
        "confidence": _confidence(found, batch, running, quantiles[0][LEVELS.index(0.9)]),
        **({} if batch.truth is None else {"precision": precision_of(found, batch.truth)}),
    }


def precision_of(found: Evaluation, truth: np.ndarray) -> dict[str, Any]:
    """Return the precision tables of one mode, fitted to data whose true states `[B, N, P]` are known."""
    error2, variance = ((truth - found.mean) ** 2).mean(-1), (found.deviation**2).mean(-1)
    return precision_tables(error2 / variance, found.gain, surprises(found)[1])


def surprises(found: Evaluation) -> tuple[np.ndarray, np.ndarray]:
    """Return the novelty of each observation and its running mean after the observation, `[B, N]` each.

    The runtime computes both in the same way.
    """
    count = found.present.sum(-1)
    z = wilson_hilferty(np.maximum(found.nis, 0), count)
    running = np.zeros_like(z)
    previous = np.zeros(len(z))
    for i in range(z.shape[1]):
        previous = np.where(count[:, i] > 0, running_novelty(previous, z[:, i]), previous)
        running[:, i] = previous
    return z, running


def _confidence(found: Evaluation, batch: Batch, running: np.ndarray, multiplier: float) -> dict[str, list[float]]:
    """Return the coverage of the 0.9 interval of the one-step forecast, in bins of the running mean of the novelty
    before the observation."""
    error = np.abs(batch.observations - found.forecast_mean[0]) / found.forecast_deviation[0]
    is_observed = np.isfinite(error[:, 1:])
    inside = (error[:, 1:] <= multiplier) & is_observed
    before = running[:, :-1]
    any_observed = is_observed.any(-1)
    feature, hits, total = before[any_observed], inside.sum(-1)[any_observed], is_observed.sum(-1)[any_observed]
    edges = np.quantile(feature, np.linspace(0, 1, CONFIDENCE_BINS + 1))
    bins = np.clip(np.searchsorted(edges, feature, side="right") - 1, 0, CONFIDENCE_BINS - 1)
    centres, shares = [], []
    for b in range(CONFIDENCE_BINS):
        chosen = bins == b
        if chosen.any():
            centres.append(float(feature[chosen].mean()))
            shares.append(float((hits[chosen].sum() + 0.9) / (total[chosen].sum() + 1)))
    order = np.argsort(centres)
    return {"surprise": [centres[i] for i in order], "inside": [shares[i] for i in order]}


def modes_of(model: StateFilter) -> tuple[Mode, ...]:
    """Return the modes that the bundle of a filter supports. A linear filter has no graphs and therefore no attention
    mode."""
    return ("recurrent",) if isinstance(model, LinearFilter) else MODES


def calibrate(model: StateFilter, batch: Batch, leads: tuple[int, ...] = LEADS) -> dict[str, Any]:
    """Return the content of calibration.json.

    Args:
        model: Filter to calibrate in each of its modes.
        batch: Validation data.
        leads: Numbers of observations to forecast ahead, in ascending order.
    """
    document: dict[str, Any] = {mode: calibrate_mode(model, batch, mode, leads) for mode in modes_of(model)}
    document["summary"] = {
        "levels": list(LEVELS),
        "horizons": document["recurrent"]["forecast"]["horizons"],
        "state_source": document["recurrent"]["state"]["source"],
        "variance_scale": {mode: document[mode]["state"]["variance_scale"] for mode in modes_of(model)},
        "streams": int(batch.times.shape[0]),
        "observations": int(np.isfinite(batch.observations).any(-1).sum()),
    }
    return document


def describe_problem(summary: Mapping[str, Any]) -> str | None:
    """Return a warning if the errors of a filter are much larger than its model predicts. Otherwise, return None.

    Args:
        summary: Summary of the calibration, as stored in the manifest.
    """
    widest = max(summary["variance_scale"].values())
    if widest <= FAR:
        return None
    return (
        f"the errors are {widest**0.5:.3g} times as large as the filter expects, so its intervals were widened by "
        "that factor; check its noise covariances, initial_mean and initial_covariance"
    )
