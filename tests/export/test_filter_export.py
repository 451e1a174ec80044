"""Filter graphs against the model over a thousand steps, the calibration's formulas, and the bundle."""

import json

import numpy as np
import pytest
import torch

from rfa.export import filter_export
from rfa.export.filter_calibration import conformal, doubt, evaluate
from rfa.export.filter_export import build_graphs, bundle_weights, export_filter, golden_outputs
from rfa.model.deep_blocks import DeepFilterConfig
from rfa.model.deep_filter import DeepFilter
from rfa.model.linear_filter import LinearFilter
from rfa.model.state_filter import Token
from rfa.runtime.bundle.bundle import open_bundle, open_session
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.training.filter import FilterRun, train_filter
from rfa.training.simulate import simulate_oscillator


@pytest.fixture(scope="module")
def traced():
    """Puts graphs that were traced once in the place of the tracer, which takes longer than all else: they hold no
    number of a model, and are the same for all linear filters of this page."""
    kept = {}

    def build(model):
        if not kept:
            kept.update(build_graphs(model))
        return kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filter_export, "build_graphs", build)
        yield


@pytest.fixture(scope="module")
def linear_bundle(tmp_path_factory, traced):
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
        if model.takes_passes():
            token["passes"] = rng.integers(1, model.inner + 1, 2).astype(np.float32)
        passes = [torch.from_numpy(token["passes"])] if model.takes_passes() else []
        with torch.no_grad():
            output, state = model.step(Token(*tensors), state, *passes)
        inputs = dict(token)
        inputs |= {f"state.{name}": own[name] for name in names}
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))
        own = {name: found[f"next.{name}"] for name in names}
        for field in ("mean", "covariance", "weight", "log_likelihood"):
            expected = getattr(output, field).numpy()
            gap = max(gap, float((np.abs(found[field] - expected) / (1 + np.abs(expected))).max()))
    return gap


def test_linear_graph_follows_the_model_for_a_thousand_steps(linear_bundle):
    model, bundle = linear_bundle
    assert drift_over_steps(model, bundle.session("step"), list(model.init_state(1)), 1000) <= 1e-5


def all_passes(session, rows: int) -> dict[str, np.ndarray]:
    """The passes of the linear model of this page, where a graph takes them."""
    is_taken = "passes" in {node.name for node in session.get_inputs()}
    return {"passes": np.full(rows, 3, np.float32)} if is_taken else {}


def run_graph(session, state, y, dt: float):
    """Outputs of one stream, observation by observation, by name."""
    outputs = []
    for row in y:
        inputs = {
            "observation": row[None].astype(np.float32),
            "present": np.ones((1, len(row)), np.float32),
            "dt": np.full(1, dt, np.float32),
            "noise_scale": np.ones(1, np.float32),
            **all_passes(session, 1),
            **{f"state.{name}": array for name, array in state.items()},
        }
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))
        state = {name: found[f"next.{name}"] for name in state}
        outputs.append(found)
    return outputs


def start(model):
    return {name: tensor.numpy() for name, tensor in model.init_state(1).items()}


def test_linear_graph_follows_a_jump_as_the_model_does(linear_bundle):
    model, bundle = linear_bundle
    y = np.random.default_rng(4).normal(size=(60, 2)).astype(np.float32)
    y[30:] += 60
    found = run_graph(bundle.session("step"), start(model), y, 0.001)
    times = torch.arange(1, 61, dtype=torch.float64)[None] * 0.001
    with torch.no_grad():
        expected, _ = model(
            torch.from_numpy(y)[None],
            torch.ones(1, 60, 2),
            times,
            state={**model.init_state(1), "time": torch.zeros(1, dtype=torch.float64)},
        )
    for i in range(60):
        assert np.abs(found[i]["mean"] - expected.mean[:, i].numpy()).max() <= 1e-4
    evidence = [float(step["next.jump_evidence"][0, 0]) for step in found]
    assert evidence[34] > 3.9 and evidence[35] == 0.0
    assert found[35]["weight"][0] == 1.0 and found[34]["weight"][0] < 0.5
    assert np.abs(found[36]["mean"] - 60).max() < 5 and np.abs(found[34]["mean"]).max() < 20


def test_the_graph_s_likelihood_of_an_absurd_observation_is_finite(linear_bundle):
    """The exporter's logaddexp gave -inf from some 90 sigma on. In float64, from the two normals themselves."""
    model, bundle = linear_bundle
    for sigma in (80.0, 95.0, 300.0, 1e4):
        y = np.full((1, 2), sigma * np.sqrt(4.5), np.float32)  # prior variance 4, noise 0.5
        found = float(run_graph(bundle.session("step"), start(model), y, 0.0)[0]["log_likelihood"][0])
        nis = 2 * sigma**2
        wide = np.log(0.02) - 0.5 * nis / 100 - np.log(2 * np.pi * 4.5 * 100)
        narrow = np.log(0.98) - 0.5 * nis - np.log(2 * np.pi * 4.5)
        # A few roundings of float32, of terms up to a hundred times the result.
        assert found == pytest.approx(np.logaddexp(wide, narrow), rel=500 * 2**-24)


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
            **all_passes(prefill, 2),
        }
        found = dict(
            zip([o.name for o in prefill.get_outputs()], prefill.run(None, {**inputs, **state, **cache}), strict=True)
        )
        assert np.abs(found["mean"] - expected.mean[:, i].numpy()).max() <= 1e-5
        state = {name: found[f"next.{name.removeprefix('state.')}"] for name in state}
        for name, rows in cache.items():
            rows[:, i] = found[f"row.{name.removeprefix('cache.')}"]


def test_an_exact_kalman_filter_exports_too():
    model = LinearFilter(
        LinearFilterConfig(drift=((-1.0,),), process_noise=((1.0,),), measurement_noise=((1.0,),), nu=None)
    )
    assert all(np.isfinite(array).all() for array in bundle_weights(model).values())
    assert all(array.ndim > 0 for array in bundle_weights(model).values())


def test_bundle_is_small_and_complete(linear_bundle):
    _, bundle = linear_bundle
    assert sum(spec.size for spec in bundle.manifest.files.values()) < 2_000_000
    assert set(bundle.manifest.graphs) == {"step", "prefill", "forecast"}
    assert bundle.manifest.family == "linear"
    again = open_bundle(bundle.path)
    assert json.dumps(again.calibration) == json.dumps(bundle.calibration)


def test_conformal_quantile_is_the_finite_sample_one():
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 20.0))  # 19 scores: 0.9 · 20 = the 18th
    assert conformal(scores, (0.9, 0.5)) == [18.0, 10.0]
    with pytest.raises(ValueError, match="calibrate"):
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


@pytest.mark.slow
def test_the_graph_learns_the_noise_as_the_model_does():
    config = {
        "drift": [[-0.3, -1.0], [1.0, -0.2]],
        "process_noise": [[0.3, 0.1], [0.1, 0.4]],
        "measurement_noise": [[0.5, 0.1], [0.1, 0.7]],
        "rule": "learned",
    }
    model = LinearFilter(LinearFilterConfig.from_dict(config)).eval()
    graphs, weights = build_graphs(model), bundle_weights(model)
    assert drift_over_steps(model, open_session(graphs["step"], weights), list(model.init_state(1)), 300) <= 1e-5
    # Runs the three graphs, each on what the one before it left.
    assert golden_outputs(model, graphs, weights)


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
    warning = doubt(export_filter(tmp_path / "run", tmp_path / "bundle").manifest.calibration)
    assert (warning is not None) == is_doubted
    assert warning is None or "initial_covariance" in warning
