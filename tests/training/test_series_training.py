"""Training of the series network: what batches hold, and that a run goes on bit for bit."""

import itertools
import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from rfa.fitting.interrupts import StopSignals
from rfa.model.checkpoint import load_run
from rfa.model.series.network import SeriesNetwork
from rfa.runtime.series.config import FEATURES, LEVELS, PATCH, PATHS, SeriesConfig
from rfa.training.muon import Float32Muon
from rfa.training.optimiser import Optimiser
from rfa.training.series_batches import (
    FARTHEST_TARGET,
    LEADS,
    NEAR,
    NEAR_LEADS,
    Cells,
    Recorded,
    TokenPlan,
    batch_of,
    cells_of,
    feed,
    synthetic_batch,
)
from rfa.training.series_config import SeriesRun, SeriesTrainingConfig
from rfa.training.series_network import (
    LARGEST,
    SeriesTrainer,
    pinball,
    train_series,
    weighted_mean,
)

MODEL = SeriesConfig(
    d_model=32, n_layers=1, n_heads=2, head_dim=4, n_slots=4, embedding_width=32, head_width=32, head_inner=32
)
TRAINING = SeriesTrainingConfig(
    steps=6, batch=4, tokens=16, validate_every=3, optimiser="muon", schedule="wsd", workers=0, precision="fp32"
)


@pytest.fixture(scope="module", autouse=True)
def few_series_are_validated():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rfa.training.series_network.VALIDATION_BATCHES", 2)
        yield


def test_values_go_to_the_cells_of_their_times():
    times = np.array([100.0, 110.2, 119.6, 120.4, 150.0, 400.0])
    values = np.array([np.nan, 1.0, 2.0, 4.0, 5.0, 6.0])
    found = cells_of(times, values, 10.0, 8, has_calendar=True)
    assert found is not None and found.start == 110.2
    np.testing.assert_array_equal(found.values, [1.0, 3.0, np.nan, np.nan, 5.0])
    assert cells_of(times, np.full(6, np.nan), 10.0, 8, has_calendar=True) is None


def test_targets_are_what_came_at_the_leads():
    values = np.sin(np.arange(700.0)) + np.arange(700) / 100
    values[300:320] = np.nan
    batch = batch_of([Cells(values, 0.0, 3600.0, False)], np.random.default_rng(0), TokenPlan(40))
    ends, leads = batch.ends[0].numpy(), batch.asked.leads[0].numpy()
    assert (np.diff(ends) >= 1).all() and (np.diff(ends) <= 16).all()
    assert ((leads[:, :NEAR_LEADS] >= 1) & (leads[:, :NEAR_LEADS] <= NEAR)).all() and (
        leads[:, NEAR_LEADS:] > NEAR
    ).all()
    assert leads.shape == (40, LEADS)
    padded = np.append(values, np.full(1000, np.nan))
    for i in range(40):
        came = padded[ends[i] - 1 + leads[i]]
        assert np.array_equal(batch.weights[0, i].numpy() > 0, np.isfinite(came) & (ends[i] <= 700))
        there = np.flatnonzero(batch.weights[0, i].numpy())
        recent = padded[ends[i] - 8 : ends[i]]
        if len(there) > 1 and np.isfinite(recent).any():
            # One centre and one scale make targets of all leads what came.
            z = np.sinh(batch.targets[0, i].numpy()[there].astype(float))
            scale, centre = np.polyfit(z, came[there], 1)
            assert scale > 0
            np.testing.assert_allclose(centre, np.nanmean(recent), atol=1e-3 * np.abs(came[there] - centre).max())
    assert batch.targets.abs().max() <= FARTHEST_TARGET


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one[:2], other[:2], strict=True)) and all(
        torch.equal(a, b) for a, b in zip((*one.asked, *one[3:]), (*other.asked, *other[3:]), strict=True)
    )


def test_workers_feed_the_same_batches_in_the_same_order():
    fed = [list(itertools.islice(feed(3, 4, 8, workers=n, first=2), 4)) for n in (0, 2)]
    for index, (here, there) in enumerate(zip(*fed, strict=True)):
        assert same(here, there) and same(here, synthetic_batch(3, 4, 8, 2 + index))
    assert not same(fed[0][0], synthetic_batch(3, 4, 8, 2, "validation"))


def test_some_batches_have_short_series_and_some_long_ones():
    batches = [synthetic_batch(0, 4, 16, index) for index in range(12)]
    shapes = {batch.tokens.shape for batch in batches}
    assert shapes == {(4, 16, FEATURES), (32, 2, FEATURES), (2, 32, FEATURES)}
    for batch in batches:
        assert batch.asked.paths.shape == (*batch.targets.shape, PATHS)
        assert torch.isfinite(batch.tokens).all() and torch.isfinite(batch.asked.paths).all()
    assert same(batches[3], synthetic_batch(0, 4, 16, 3))
    kept = [synthetic_batch(0, 4, 16, index, "validation").tokens.shape[1] for index in range(8)]
    assert sorted(kept) == [2, 2, 16, 16, 16, 16, 16, 32]
    network = SeriesNetwork(MODEL)
    assert network(batches[0].tokens, batches[0].ends, batches[0].asked).shape == (
        *batches[0].targets.shape,
        len(LEVELS),
    )


def test_a_run_goes_on_from_the_copy_of_its_checkpoint(tmp_path):
    run = SeriesRun(MODEL, TRAINING)
    half = replace(run, training=replace(TRAINING, steps=1, validate_every=1))
    more = replace(half, training=replace(half.training, steps=2))
    train_series(half, tmp_path / "run", copy_to=tmp_path / "copy")
    shutil.copytree(tmp_path / "copy", tmp_path / "kept")
    train_series(more, tmp_path / "run")
    train_series(more, tmp_path / "kept")
    one, other = weights(tmp_path / "run"), weights(tmp_path / "kept")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_muon_in_float32_moves_like_torchs():
    torch.manual_seed(0)
    matrices = [torch.nn.Parameter(torch.randn(48, 20)), torch.nn.Parameter(torch.randn(20, 48))]
    copies = [torch.nn.Parameter(matrix.detach().clone()) for matrix in matrices]
    options = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    one, other = torch.optim.Muon(matrices, **options), Float32Muon(copies, **options)
    for _ in range(3):
        for matrix, copy in zip(matrices, copies, strict=True):
            copy.grad = matrix.grad = torch.randn(matrix.shape)
        one.step()
        other.step()
    for matrix, copy in zip(matrices, copies, strict=True):
        # bf16 has eight bits: each of three steps of rate · .2 √48 times an entry is off by a few hundredths of it.
        assert (matrix - copy).abs().max() < 3 * 0.02 * 0.2 * 48**0.5 * 0.05
        assert torch.equal(one.state[matrix]["momentum_buffer"], other.state[copy]["momentum_buffer"])


def test_the_loss_is_least_at_the_quantiles_of_what_came():
    """Of a thousand draws no shift of the true quantiles is better than they are by more than their sampling error."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(1, 1, 20_000, generator=generator)
    batch = synthetic_batch(0, 4, 8)._replace(targets=z, weights=torch.ones_like(z))
    true = torch.distributions.Normal(0, 1).icdf(torch.tensor(LEVELS)).expand(1, 1, 20_000, len(LEVELS))
    best = pinball(true, batch).mean()
    for shift in (-0.1, 0.1):
        assert pinball(true + shift, batch).mean() > best
    assert pinball(1.2 * true, batch).mean() > best and pinball(0.8 * true, batch).mean() > best


def weights(out):
    return load_run(out).state_dict()


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, monkeypatch):
    run = SeriesRun(MODEL, TRAINING)
    record = train_series(run, tmp_path / "whole")
    assert record["series"] == 24 and set(record["validation"]) == {"recurrent"}

    class Interrupted(StopSignals):
        def check(self, step, steps, save):
            if step == 2:
                self.received = 2
            super().check(step, steps, save)

    monkeypatch.setattr("rfa.training.series_network.StopSignals", Interrupted)
    with pytest.raises(KeyboardInterrupt, match="step 2 of 6"):
        train_series(run, tmp_path / "parts")
    monkeypatch.undo()
    assert train_series(run, tmp_path / "parts")["validation"] == record["validation"]
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)


class Clock:
    """A second passes between two looks at it."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 1
        return self.now


def test_a_run_of_minutes_ends_by_time_and_its_rates_go_by_it(tmp_path, monkeypatch):
    """Four seconds of six steps: a step a second. More minutes go on; the schedule is then that of them all."""
    monkeypatch.setattr("rfa.training.series_network.time", Clock())
    positions = []

    def step(self, position, original=Optimiser.step):
        positions.append(position)
        original(self, position)

    monkeypatch.setattr(Optimiser, "step", step)
    run = SeriesRun(MODEL, replace(TRAINING, minutes=4 / 60))
    assert train_series(run, tmp_path)["series"] == 16
    np.testing.assert_allclose(positions, [0, 1.5, 3, 4.5])
    assert train_series(run, tmp_path)["series"] == 16 and len(positions) == 4
    longer = SeriesRun(MODEL, replace(TRAINING, minutes=8 / 60))
    assert train_series(longer, tmp_path)["series"] == 32
    np.testing.assert_allclose(positions[4:], [3, 3.75, 4.5, 5.25])
    with pytest.raises(ValueError, match="it differs in minutes"):
        train_series(run, tmp_path)


@pytest.mark.slow  # Triton's interpreter; tests/model/test_triton_backward.py has the gradients
def test_the_gpus_kernels_train_every_parameter(monkeypatch):
    """In Triton's interpreter: gradients are those of the compiled scan, token by token lags included."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("the kernels are defined for the GPU that is here")
    torch.manual_seed(0)
    network, batch = SeriesNetwork(MODEL), synthetic_batch(0, 3, 6)
    assert not (torch.diff(batch.ends) == PATCH).all()

    def gradients():
        network.zero_grad()
        loss = weighted_mean(pinball(network(batch.tokens, batch.ends, batch.asked), batch), batch.weights)
        loss.backward()
        return {name: parameter.grad for name, parameter in network.named_parameters()}

    expected = gradients()
    monkeypatch.setattr("rfa.model.recurrence.slots.is_on_gpu", lambda _: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of slots that run token by token
        found = gradients()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (gradient is None) == (found[name] is None), name
        if gradient is not None:
            torch.testing.assert_close(
                found[name], gradient, rtol=1e-3, atol=1e-5 * float(gradient.abs().max()), msg=name
            )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of NVIDIA")
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_a_gpu_trains_and_a_cpu_goes_on(tmp_path, is_compiled):
    """Fed by processes, in bfloat16; its loss falls as a CPU's does, and the run is one that either goes on with."""
    settings = replace(
        TRAINING, steps=60, batch=16, learning_rate=5e-3, matrix_learning_rate=5e-3, precision="bf16", workers=2,
        validate_every=30, ema=0.9, compile=is_compiled,
    )  # fmt: skip
    record = train_series(SeriesRun(MODEL, settings), tmp_path / "gpu", device="cuda")
    rows = [json.loads(line) for line in (tmp_path / "gpu" / "metrics.jsonl").read_text().splitlines()]
    by_cpu = train_series(SeriesRun(MODEL, replace(settings, compile=False)), tmp_path / "cpu")
    far = [result["validation"]["recurrent"]["far_loss"] for result in (record, by_cpu)]
    assert abs(far[0] / far[1] - 1) < 0.05
    assert [row["step"] for row in rows] == [30, 60] and rows[1]["train"] < rows[0]["train"]
    more = SeriesRun(MODEL, replace(settings, steps=62))
    assert train_series(more, tmp_path / "gpu")["series"] == 62 * 16


def test_a_run_goes_on_with_another_number_of_workers(tmp_path):
    train_series(SeriesRun(MODEL, replace(TRAINING, steps=1)), tmp_path)
    record = train_series(SeriesRun(MODEL, replace(TRAINING, steps=2, workers=1)), tmp_path)
    assert record["series"] == 8 and record["config"]["training"]["workers"] == 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("series") / "run"
    train_series(SeriesRun(MODEL, replace(TRAINING, steps=1)), out)
    return out


@pytest.fixture
def out(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def contents(out):
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_a_finished_run_is_left_as_it_is(out, capsys):
    run, before = SeriesRun(MODEL, replace(TRAINING, steps=1)), contents(out)
    record = train_series(run, out)
    assert contents(out) == before and record == json.loads(before["train.json"])
    assert "is finished" in capsys.readouterr().err
    for broken in ("{", json.dumps({**record, "series": 0})):  # killed while it was written, or before it was removed
        (out / "train.json").write_text(broken)
        assert train_series(run, out)["validation"] == record["validation"]
        assert json.loads((out / "train.json").read_text())["series"] == record["series"]


def test_it_learns(tmp_path):
    run = SeriesRun(MODEL, replace(TRAINING, steps=20, batch=8, learning_rate=5e-3, matrix_learning_rate=5e-3))
    trainer = SeriesTrainer(run, tmp_path)
    batch = synthetic_batch(0, 8, 16, 0)
    losses = [trainer.update(batch) for _ in range(20)]
    assert np.mean(losses[-4:]) < 0.85 * losses[0]


def test_attention_alone_leaves_the_recurrent_mode_as_it_is(tmp_path):
    """Its readout is its own: the stream of a network is the same, bit for bit, after the window was trained."""
    train_series(SeriesRun(MODEL, replace(TRAINING, steps=2)), tmp_path / "first")
    run = SeriesRun(MODEL, replace(TRAINING, steps=3, modes=("attention",)))
    train_series(run, tmp_path / "second", begin_from=load_run(tmp_path / "first"))
    one, other = load_run(tmp_path / "first"), load_run(tmp_path / "second")
    batch = synthetic_batch(5, 4, 16)
    with torch.no_grad():
        for mode in ("recurrent", "attention"):
            one.mode = other.mode = mode
            outputs = [model(batch.tokens, batch.ends, batch.asked) for model in (one, other)]
            assert torch.equal(*outputs) == (mode == "recurrent")


def own_series(count=3, length=900):
    rng = np.random.default_rng(4)
    return [
        Cells(np.resize([5.0, 1.0, 7.0, 2.0, 9.0], length) + 0.1 * rng.standard_normal(length), 0.0, 60.0, False)
        for _ in range(count)
    ]


def test_own_series_are_trained_on_but_for_their_last_fifth():
    marked = [Cells(np.arange(1000.0), 0.0, 1.0, False)]
    own = Recorded(marked, 8)
    for index in range(20):
        batch = own.batch(0, 4, index)
        # A line of slope one: centre and scale tell the cell, and targets are what lies at the leads.
        assert batch.weights.sum() > 0
    held = own.held_out()
    assert held.weights.sum() > 0
    assert (held.weights[0][held.ends[0] < 64] == 0).all()
    assert same(own.batch(0, 4, 3), Recorded(marked, 8).batch(0, 4, 3))
    with pytest.raises(ValueError, match="32 regular time steps"):
        Recorded([Cells(np.zeros(5), 0.0, 1.0, False)], 8)


def test_values_are_trained_on_as_far_as_the_network_has_space(tmp_path):
    signs = np.random.default_rng(0).choice([-1.0, 1.0], 3000)
    run = SeriesRun(MODEL, replace(TRAINING, steps=1))
    train_series(run, tmp_path / "largest", own=[Cells(LARGEST * signs, 0.0, 1.0, False)])
    with pytest.raises(ValueError, match=r"magnitude 1e\+300, .* larger unit"):
        train_series(run, tmp_path / "beyond", own=[Cells(1e300 * signs, 0.0, 1.0, False)])
    assert not (tmp_path / "beyond").exists()


@pytest.mark.slow
def test_tuning_on_own_series_makes_them_better(tmp_path):
    first = train_series(SeriesRun(MODEL, replace(TRAINING, steps=8)), tmp_path / "first")
    run = SeriesRun(MODEL, replace(TRAINING, steps=60, batch=8, learning_rate=5e-3, matrix_learning_rate=5e-3))
    base = SeriesTrainer(run, tmp_path / "none", load_run(tmp_path / "first"), Recorded(own_series(), 16))
    fixed = [synthetic_batch(0, 4, 16, 0, "validation")]
    before = base.validate(fixed, "recurrent")["own_near_loss"]
    record = train_series(run, tmp_path / "tuned", begin_from=load_run(tmp_path / "first"), own=own_series())
    assert record["validation"]["recurrent"]["own_near_loss"] < 0.8 * before
    assert first["parameters"] == record["parameters"]
