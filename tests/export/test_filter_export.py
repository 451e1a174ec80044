"""Filter graphs against the model over a thousand steps, the calibration's formulas, and the bundle."""

import json

import numpy as np
import pytest
import torch

from rfa.export.filter_calibration import conformal, describe_problem, evaluate
from rfa.export.filter_export import build_graphs, bundle_weights, export_filter
from rfa.model.deep_blocks import DeepFilterConfig
from rfa.model.deep_filter import DeepFilter
from rfa.model.state_filter import Token
from rfa.runtime.bundle.bundle import BundleError, open_bundle, open_session
from rfa.runtime.filters.golden import hold_to_golden, open_filter
from rfa.training.filter import FilterRun, train_filter
from rfa.training.simulate import simulate_oscillator


@pytest.fixture(scope="module")
def linear_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linear")
    run = FilterRun.from_dict(
        {
            "family": "linear",
            "model": {
                "drift": [[0.9, -2.0], [1.0, -1.1]],
                "process_noise": [[0.3, 0.0], [0.0, 0.3]],
                "measurement_noise": [[0.5, 0.0], [0.0, 0.5]],
                "initial_covariance": [[4.0, 0.0], [0.0, 4.0]],
                "contamination": 0.02,
            },
            "training": {"length": 24, "noise_settings": [[0.3, 0.5]], "sequences": 4},
        }
    )
    model = train_filter(run, "simulate:oscillator", folder / "run", show_progress=False)
    return model, export_filter(folder / "run", folder / "linear")


def drift_over_steps(model, session, names, n_steps: int) -> float:
    """Largest difference between graph and model, each on its own state, relative to the size of the outputs."""
    rng = np.random.default_rng(0)
    state = {name: tensor.detach().clone() for name, tensor in model.init_state(2).items()}
    own = {name: tensor.numpy().copy() for name, tensor in state.items()}
    gap = 0.0
    for i in range(n_steps):
        y = rng.normal(size=(2, 2)).astype(np.float32) * (10 if i % 17 == 0 else 1)
        present = (rng.random((2, 2)) > 0.1).astype(np.float32)
        dt = np.full(2, 0.0 if i == 0 else rng.exponential(0.1), np.float32)
        scale = np.ones(2, np.float32)
        token = {"observation": y * present, "present": present, "dt": dt, "noise_scale": scale}
        tensors = [torch.from_numpy(x) for x in token.values()]
        with torch.no_grad():
            output, state = model.step(Token(*tensors), state)
        inputs = dict(token)
        inputs |= {f"state.{name}": own[name] for name in names}
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))
        own = {name: found[f"next.{name}"] for name in names}
        for field in ("mean", "covariance", "weight", "log_likelihood"):
            expected = getattr(output, field).numpy()
            gap = max(gap, float((np.abs(found[field] - expected) / (1 + np.abs(expected))).max()))
    return gap


@pytest.mark.slow
def test_deep_graphs_follow_the_model_for_a_thousand_steps():
    torch.manual_seed(0)
    model = DeepFilter(DeepFilterConfig(observation_size=2, time_unit=0.1, d_model=8, n_heads=2, head_dim=2)).eval()
    model.readout[1].weight.data.normal_(std=0.2)
    graphs = build_graphs(model)
    session = open_session(graphs["step"], bundle_weights(model))
    assert drift_over_steps(model, session, list(model.init_state(1)), 1000) <= 1e-5

    prefill = open_session(graphs["prefill"], bundle_weights(model))
    batch = simulate_oscillator(2, 12, seed=3)
    y = torch.from_numpy(batch.observations).float()
    model.mode = "attention"
    with torch.no_grad():
        expected, _ = model(y, torch.ones_like(y), torch.from_numpy(batch.times))
    state = {f"state.{n}": t.detach().numpy().copy() for n, t in model.init_state(2).items()}
    cache = {f"cache.{n}": np.zeros((2, 16, *shape), np.float32) for n, shape in model.cache_rows().items()}
    for i in range(12):
        inputs = {
            "observation": y[:, i].numpy(),
            "present": np.ones((2, 2), np.float32),
            "dt": np.full(2, 0.1 if i else 0.0, np.float32),
            "noise_scale": np.ones(2, np.float32),
            "lag": np.concatenate([batch.times[:, i : i + 1] - batch.times[:, :i], np.zeros((2, 16 - i))], 1).astype(
                np.float32
            ),
            "valid": np.repeat((np.arange(16) < i)[None], 2, axis=0).astype(np.float32),
        }
        found = dict(
            zip([o.name for o in prefill.get_outputs()], prefill.run(None, {**inputs, **state, **cache}), strict=True)
        )
        assert np.abs(found["mean"] - expected.mean[:, i].numpy()).max() <= 1e-5
        state = {name: found[f"next.{name.removeprefix('state.')}"] for name in state}
        for name, rows in cache.items():
            rows[:, i] = found[f"row.{name.removeprefix('cache.')}"]


def test_bundle_is_small_and_complete(linear_bundle):
    _, bundle = linear_bundle
    assert sum(spec.size for spec in bundle.manifest.files.values()) < 2_000_000
    assert not bundle.manifest.graphs and bundle.calibration.keys() == {"recurrent", "summary"}
    assert bundle.manifest.family == "linear"
    again = open_bundle(bundle.path)
    assert json.dumps(again.calibration) == json.dumps(bundle.calibration)


def test_conformal_quantile_is_the_finite_sample_one():
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 20.0))  # 19 scores: 0.9 · 20 = the 18th
    assert conformal(scores, (0.9, 0.5)) == [18.0, 10.0]
    with pytest.raises(ValueError, match="the calibration needs observations"):
        conformal(np.array([]), (0.9,))


def test_calibrated_intervals_cover_fresh_data(linear_bundle):
    model, bundle = linear_bundle
    fresh = simulate_oscillator(150, 40, settings=((0.3, 0.5),), seed=77)
    found = evaluate(model, fresh, "recurrent")
    error = np.abs(fresh.truth - found.mean) / found.deviation
    for level, multiplier in zip(
        (0.5, 0.8, 0.9, 0.95), bundle.calibration["recurrent"]["state"]["multipliers"], strict=True
    ):
        assert abs(np.mean(error <= multiplier) - level) < 0.03


def test_a_linear_bundle_is_held_to_golden_outputs_of_its_model(linear_bundle):
    _, bundle = linear_bundle
    model = open_filter(bundle)
    assert hold_to_golden(bundle, model) > 100
    bundle.golden["cases"][2]["outputs"]["mean"]["values"][0] += 0.01
    with pytest.raises(BundleError, match=r"golden\.json, in compiled code: case 2, step\.mean differs"):
        hold_to_golden(bundle, model)


@pytest.mark.parametrize(("noise", "is_doubted"), [(0.5, False), (0.005, True)])
def test_a_filter_that_does_not_fit_its_data_is_doubted(linear_bundle, tmp_path, noise, is_doubted):
    """The data have measurement noise of 0.5 and process noise of 0.3."""
    model, _ = linear_bundle
    small = {
        "measurement_noise": [[noise, 0.0], [0.0, noise]],
        "process_noise": [[0.6 * noise, 0.0], [0.0, 0.6 * noise]],
    }
    config = {**model.config.to_dict(), **small}
    run = {
        "family": "linear",
        "model": config,
        "training": {"length": 24, "noise_settings": [[0.3, 0.5]], "sequences": 4},
    }
    train_filter(FilterRun.from_dict(run), "simulate:oscillator", tmp_path / "run", show_progress=False)
    warning = describe_problem(export_filter(tmp_path / "run", tmp_path / "bundle").manifest.calibration)
    assert (warning is not None) == is_doubted
    assert warning is None or "initial_covariance" in warning
