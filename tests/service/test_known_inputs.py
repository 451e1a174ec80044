"""Known inputs of linear filters: what drives the state, and what the measurement is off by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from scipy.linalg import expm

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.uncertainty.alarms import alarm
from tests.service.conftest import Live
from tests.service.live import answer, replies_of, serving

COUNT = 80
RNG = np.random.default_rng(7)
TIMES = np.cumsum(RNG.exponential(0.2, COUNT))
INPUTS = np.repeat(RNG.normal(size=(COUNT // 8, 2)) * 5, 8, axis=0)
ROUNDING = 1e-9
HORIZON = (0.3, 2.0)


def system(bundles: Path) -> tuple[np.ndarray, ...]:
    config = open_bundle(bundles / "linear").config
    names = ("drift", "process_noise", "measurement_noise", "initial_covariance")
    return tuple(np.array(config[name]) for name in names)


def moves(drift: np.ndarray, process: np.ndarray, lag: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F, G and Q by exponentials of blocks (Van Loan), which share nothing with the modes of the filter."""
    n = len(drift)
    driven = expm(np.block([[drift, np.eye(n)], [np.zeros((n, 2 * n))]]) * lag)
    noisy = expm(np.block([[-drift, process], [np.zeros((n, n)), drift.T]]) * lag)
    f = driven[:n, :n]
    return f, driven[:n, n:], f @ noisy[:n, n:]


def simulate(bundles: Path) -> np.ndarray:
    """Observations of the driven system, without outliers."""
    drift, process, noise, prior = system(bundles)
    x, seen = RNG.multivariate_normal(np.zeros(2), prior), []
    for k in range(COUNT):
        f, g, q = moves(drift, process, TIMES[k] - TIMES[k - 1] if k else 0.0)
        x = f @ x + g @ INPUTS[k] + (RNG.multivariate_normal(np.zeros(2), q) if k else 0)
        seen.append(x + RNG.multivariate_normal(np.zeros(2), noise))
    return np.array(seen)


def responses(bundles: Path) -> np.ndarray:
    """What the system makes of the input alone."""
    drift, process, *_ = system(bundles)
    found, response = [], np.zeros(2)
    for k in range(COUNT):
        f, g, _ = moves(drift, process, TIMES[k] - TIMES[k - 1] if k else 0.0)
        response = f @ response + g @ INPUTS[k]
        found.append(response)
    return np.array(found)


def followed(bundles: Path, values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A Kalman filter with the input in its prediction, whose measurement noise is divided by these weights: means
    `[N, 2]` and forecasts `[N, H, 2]`."""
    drift, process, noise, covariance = system(bundles)
    mean, means, ahead = np.zeros(2), [], []
    for k in range(COUNT):
        f, g, q = moves(drift, process, TIMES[k] - TIMES[k - 1] if k else 0.0)
        mean, covariance = f @ mean + g @ INPUTS[k], f @ covariance @ f.T + q
        gain = covariance @ np.linalg.inv(covariance + noise / weights[k])
        mean, covariance = mean + gain @ (values[k] - mean), covariance - gain @ covariance
        means.append(mean)
        ahead.append([m[0] @ mean + m[1] @ INPUTS[k] for m in (moves(drift, process, lead) for lead in HORIZON)])
    return np.array(means), np.array(ahead)


def reported(runtime: FilterRuntime, values: np.ndarray, inputs: Any = INPUTS, **options: Any) -> Any:
    sequence = runtime.filter(TIMES.tolist(), values.tolist(), horizon=HORIZON, levels=(0.9,), inputs=inputs, **options)
    return sequence, {
        name: np.concatenate([getattr(piece.outputs, name) for piece in sequence.pieces])
        for name in ("mean", "moments", "interval", "bands", "weight", "nis", "anomaly", "innovation")
    }


def test_means_and_forecasts_are_those_of_a_filter_that_predicts_with_the_input(bundles: Path) -> None:
    values = simulate(bundles)
    _, found = reported(FilterRuntime(open_bundle(bundles / "linear")), values)
    _, blind = reported(FilterRuntime(open_bundle(bundles / "linear")), values, None)
    assert blind["weight"].mean() < found["weight"].mean() - 0.1
    means, ahead = followed(bundles, values, found["weight"])
    assert np.abs(found["mean"] - means).max() <= ROUNDING * 10
    assert np.abs(found["moments"][:, :, 0] - ahead).max() <= ROUNDING * 10
    assert np.all((found["bands"][..., 0] < ahead[:, :, None]) & (ahead[:, :, None] < found["bands"][..., 1]))


def test_smoothing_is_that_without_the_input_moved_by_its_response(bundles: Path) -> None:
    runtime, values = FilterRuntime(open_bundle(bundles / "linear")), simulate(bundles)
    moved = responses(bundles)
    driven, _ = reported(runtime, values, smooth=True, samples=2, seed=3)
    free, _ = reported(runtime, values - moved, None, smooth=True, samples=2, seed=3)
    for k, (mine, other) in enumerate(zip(driven.smoothed, free.smoothed, strict=True)):
        assert np.abs(np.array(mine.mean) - other.mean - moved[k]).max() <= 1e-9
        assert mine.std == pytest.approx(other.std, rel=1e-12)
    for k, (mine, other) in enumerate(zip(driven.steps, free.steps, strict=True)):
        assert np.abs(mine.samples - other.samples - moved[k]).max() <= 1e-9


def test_segments_and_rows_are_the_series_bit_for_bit(bundles: Path) -> None:
    runtime, values = FilterRuntime(open_bundle(bundles / "linear")), simulate(bundles)
    _, whole = reported(runtime, values)
    state, parts = None, []
    for rows in (slice(0, 1), slice(1, 30), slice(30, 31), slice(31, COUNT)):
        part = runtime.filter(
            TIMES[rows].tolist(), values[rows].tolist(), horizon=HORIZON, levels=(0.9,), inputs=INPUTS[rows].tolist(),
            state=None if state is None else runtime.unpack(state),
        )  # fmt: skip
        state = runtime.pack(part.state)
        parts += [piece.outputs for piece in part.pieces]
    for name in ("mean", "moments", "interval", "bands", "anomaly"):
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), whole[name], equal_nan=True)


def test_an_input_that_ended_is_not_forgotten(bundles: Path) -> None:
    """Its response decays by the dynamics, also in a request that gives no input."""
    runtime, values = FilterRuntime(open_bundle(bundles / "linear")), simulate(bundles)
    until = INPUTS * (np.arange(COUNT) < 40)[:, None]
    _, whole = reported(runtime, values, until)
    first = runtime.filter(TIMES[:40].tolist(), values[:40].tolist(), inputs=INPUTS[:40].tolist())
    rest = runtime.filter(TIMES[40:].tolist(), values[40:].tolist(), horizon=HORIZON, levels=(0.9,), state=first.state)
    assert np.array_equal(np.concatenate([piece.outputs.mean for piece in rest.pieces]), whole["mean"][40:])
    with pytest.raises(InvalidInput, match=r"alarm\.range .* a state that was computed with inputs"):
        runtime.check_input(alarm(0.01, range=(0.0, None)), first.state, is_given=False)


@pytest.mark.anyio
async def test_the_door_takes_input_and_bias(bundles: Path) -> None:
    values = simulate(bundles)
    _, found = reported(FilterRuntime(open_bundle(bundles / "linear")), values)
    bias = RNG.normal(size=(COUNT, 2))
    body: dict[str, Any] = {"model": "linear", "times": TIMES.tolist(), "fields": ["mean"], "horizon": list(HORIZON)}
    async with serving("linear", "oscillator") as client:
        reply = await answer(
            client, body | {"observations": (values + bias).tolist(), "input": INPUTS.tolist(), "bias": bias.tolist()}
        )
        means = np.array([step["mean"] for step in reply["steps"]])
        assert np.abs(means - found["mean"]).max() <= 1e-9  # of y + b - b
        plain = await answer(client, body | {"observations": values.tolist()})
        nothing = await answer(client, body | {"observations": values.tolist(), "input": [None] * COUNT})
        assert plain["steps"] == nothing["steps"]
        for wrong, param, code in (
            ({"input": [[1.0]] * COUNT}, "input[0]", "shape_mismatch"),
            ({"input": [[1.0, 0.0]]}, "input", "length_mismatch"),
            ({"bias": [[1.0]] * COUNT}, "bias[0]", "shape_mismatch"),
            ({"input": INPUTS.tolist(), "alarm": {"rate": 0.01, "range": [0, 1]}}, "alarm.range", "range_with_input"),
            ({"model": "oscillator", "input": INPUTS.tolist()}, "input", "no_input"),
            *(
                ({"bias": [None, [1e12, 0.0], *[None] * (COUNT - 2)], **mode}, "bias[1]", "out_of_range")
                for mode in ({}, {"mode": "attention"}, {"smooth": True})
            ),
        ):
            seen = [values[0].tolist(), [-1e12, 0.0], *values[2:].tolist()]
            refused = await client.post("/filter", json=body | {"observations": seen} | wrong)
            error = refused.json()["error"]
            assert (refused.status_code, error["param"], error["code"]) == (422, param, code)


def test_a_live_stream_takes_them_by_the_frame(live: Live, bundles: Path) -> None:
    values = simulate(bundles)
    with live(bundles=(bundles / "linear",)) as url:
        body = {"times": TIMES.tolist(), "observations": values.tolist(), "input": INPUTS.tolist(), "horizon": [0.5]}
        steps = httpx.post(f"{url}/filter", json={"model": "linear", **body}).json()["steps"]
        rows = zip(TIMES.tolist(), values.tolist(), INPUTS.tolist(), strict=True)
        sent = [{"t": t, "y": y, "input": held} for t, y, held in rows]
        wrong = {"t": 1e3, "y": [0, 0], "input": [1.0]}
        _, *found, refused = replies_of(url, {"model": "linear", "horizon": [0.5]}, *sent, wrong)
        assert found == steps and refused["error"]["param"] == "input"
