"""A metric filter becomes a bundle like any other: graphs that follow the model, small, served for any unit."""

import numpy as np
import pytest
import torch

from rfa.export.filter_export import build_graph, bundle_weights, export_filter, graph_sources
from rfa.model.metric_filter import MetricFilter, MetricFilterConfig
from rfa.model.state_filter import Token
from rfa.runtime.bundle.bundle import check_golden, open_session
from rfa.runtime.filters.filter import FilterRuntime
from rfa.training.filter import FilterRun, train_filter


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metric")
    generator = np.random.default_rng(0)
    for k in range(3):
        values = 10.0**k * (30 + np.cumsum(0.5 * generator.standard_normal(300)) + generator.standard_normal(300))
        rows = "\n".join(f"{300 * i},{value:.9g}" for i, value in enumerate(values))
        (folder / f"m{k}.csv").write_text(f"t,value\n{rows}\n")
    training = {"length": 64}
    train_filter(FilterRun.from_dict({"family": "metric", "training": training}), str(folder), folder / "run",
                 show_progress=False)  # fmt: skip
    return export_filter(folder / "run", folder / "mine")


def test_the_graph_follows_the_model_for_a_thousand_steps():
    model = MetricFilter(MetricFilterConfig(nu=5.0, inner=2)).eval()
    session = open_session(build_graph(graph_sources(model)["step"]), bundle_weights(model))
    generator = np.random.default_rng(1)
    state = model.init_state(2)
    own = {name: tensor.numpy().copy() for name, tensor in state.items()}
    for i in range(1000):
        y = (np.array([[1e7], [0.02]]) * (50 + generator.standard_normal((2, 1)))).astype(np.float32)
        y *= 30 if i % 97 == 50 else 1
        present = (generator.random((2, 1)) > 0.1).astype(np.float32)
        token = {
            "observation": y * present,
            "present": present,
            "dt": np.full(2, 0.0 if i == 0 else generator.uniform(250, 350), np.float32),
            "noise_scale": np.ones(2, np.float32),
        }
        with torch.no_grad():
            output, state = model.step(Token(*(torch.from_numpy(array) for array in token.values())), state)
        inputs = token | {f"state.{name}": array for name, array in own.items()}
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))
        own = {name: found[f"next.{name}"] for name in own}
        for field in ("mean", "covariance", "nis", "weight"):
            # A float32 recursion of a few hundred steps of memory: some hundred roundings of 6e-8.
            assert np.allclose(found[field], getattr(output, field).numpy(), rtol=1e-4, atol=1e-6), (i, field)


@pytest.mark.slow
def test_the_bundle_is_small_and_whole(bundle):
    assert bundle.manifest.family == "metric"
    assert all("precision" in bundle.calibration[mode] for mode in ("attention", "recurrent"))
    assert sum(spec.size for spec in bundle.manifest.files.values()) < 2_000_000
    assert check_golden(bundle) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["recurrent", "attention"])
def test_the_runtime_serves_it_in_any_unit(bundle, mode):
    runtime = FilterRuntime(bundle)
    assert runtime.observation_size == 1
    values = 40 + np.random.default_rng(2).standard_normal(80)
    times = [float(i) for i in range(80)]

    def filtered(scale, unit):
        rows = [[float(scale * value)] for value in values]
        return runtime.filter([unit * t for t in times], rows, mode=mode, horizon=[unit], smooth=True)

    # Powers of two: not even a rounding differs, and the guess before the second observation is all that has a unit.
    here, there = filtered(1.0, 1.0), filtered(2.0**20, 64.0)
    for a, b in zip(here.steps[5:], there.steps[5:], strict=True):
        assert b.mean[0] == pytest.approx(2**20 * a.mean[0], rel=1e-5)
        assert b.std[0] == pytest.approx(2**20 * a.std[0], rel=1e-4)
        assert b.nis == pytest.approx(a.nis, rel=1e-3, abs=1e-6)
        assert np.isfinite(b.forecast[0].std[0])
    assert here.smoothed is not None and len(here.smoothed) == 80
