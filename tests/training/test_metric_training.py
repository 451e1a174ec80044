"""A folder of metrics is read up to its earlier part, and becomes the run of a metric filter."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from rfa.model.checkpoint import load_run
from rfa.training.filter import FilterRun, train_filter
from rfa.training.metric import load_metrics


def write(path, values, header="timestamp,value"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "\n" + "\n".join(f"{60 * i},{value:.17g}" for i, value in enumerate(values)) + "\n")


def test_only_the_earlier_part_is_read(tmp_path):
    write(tmp_path / "a.csv", [float(i) for i in range(100)])
    fit, held, files = load_metrics(tmp_path, 20)
    assert fit.observations.max() < 36 <= held.observations.min() and held.observations.max() < 60
    assert [path.name for path in files] == ["a.csv"]
    assert fit.times.shape[1:] == (20,) and fit.observations.shape[1:] == (20, 1)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no \.csv"):
        load_metrics(tmp_path, 20)
    write(tmp_path / "short.csv", [1.0] * 70)
    with pytest.raises(ValueError, match=r"short\.csv is too short"):
        load_metrics(tmp_path, 20)
    (tmp_path / "short.csv").write_text("t,a,b\n0,1,2\n1,2,3\n")
    with pytest.raises(ValueError, match="has 2 columns"):
        load_metrics(tmp_path, 20)


def test_a_folder_becomes_a_run(tmp_path):
    write(tmp_path / "data" / "part" / "a.csv", np.random.default_rng(0).standard_normal(200))
    run = FilterRun.from_dict({"family": "metric", "model": {"process": 0.5}, "training": {"length": 30}})
    model = train_filter(run, str(tmp_path / "data"), tmp_path / "run", show_progress=False)
    assert load_run(tmp_path / "run").config == model.config
    assert model.config.process == 0.5
    held = load_file(tmp_path / "run" / "validation.safetensors")["observations"]
    assert held.shape[1:] == (30, 1)
    simulated = load_file(tmp_path / "run" / "simulated.safetensors")
    steps = np.diff(simulated["truth"], axis=1)
    # Of 60,000 steps of variance 0.5: the error of their variance is a two-hundredth of it.
    assert np.var(steps) == pytest.approx(0.5, rel=0.03)
    noise = (simulated["observations"] - simulated["truth"])[..., 0]
    clean, disturbed = np.split(np.abs(noise) > 5, 2)
    assert not clean.any() and disturbed.mean() == pytest.approx(0.02 * 0.617, rel=0.2)
