"""`rfa bench kernel` as far as it goes without a GPU: the check before the timing, pairs and bars."""

import dataclasses
import itertools

import pytest
import torch

from rfa.benchmarks.gpu.paired import Bar, interleaved, quantiles, ratio
from rfa.benchmarks.kernels import rivals as kernel_rivals
from rfa.benchmarks.kernels import slots as kernel_slots
from rfa.benchmarks.kernels import training as kernel_training
from rfa.benchmarks.kernels.attention import Case, Runner
from rfa.benchmarks.kernels.truth import (
    WrongResultError,
    make_problem,
    robust_rows,
    truth_of,
    turned_back,
)
from rfa.model.attention.api import robust_filter_attention
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.language_config import LanguageRun, TrainingConfig


def test_cases_take_turns():
    seen = []
    cases = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    clock = itertools.count(1.0)

    def timer(call):
        call()
        return next(clock)

    samples = interleaved(cases, timer, rounds=4, warmups=1)
    assert seen == list("abc" + "abc" + "bca" + "cab" + "abc")
    assert samples["a"] == [1.0, 6.0, 8.0, 10.0]


def test_quantiles_and_ratio_are_of_the_samples():
    assert quantiles([4.0, 1.0, 2.0, 3.0, 5.0, 6.0]) == {"p20_ms": 2.0, "p50_ms": 3.5, "p80_ms": 5.0}
    # Each sample is held against that of its own round.
    assert ratio([1.0, 4.0, 3.0], [2.0, 2.0, 6.0]) == 0.5
    with pytest.raises(ValueError, match="equally many, got 1 and 2"):
        ratio([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("actual", "is_minimum", "met"),
    [(1.25, False, True), (1.26, False, False), (2.0, True, True), (1.9, True, False), (None, False, False),
     (float("nan"), False, False), (float("inf"), True, False)],
)  # fmt: skip
def test_a_bar_that_was_not_measured_is_not_met(actual, is_minimum, met):
    assert Bar("x", 2.0 if is_minimum else 1.25, actual, is_minimum).is_met is met


@pytest.fixture(scope="module")
def problem():
    return make_problem(2, 37, 4, 8, torch.float32, "cpu")


@pytest.fixture(scope="module")
def truth(problem):
    return truth_of(problem, robust_rows)


def run(attention, problem, truth, name="it", **options):
    return Runner(Case(attention, **options), problem).check(name, truth)


def test_the_truth_is_the_reference(problem, truth):
    """Against the public function, which rotates: the given inputs, not the rotated ones."""
    q, k, v = problem.given
    result = robust_filter_attention(q, k, v, problem.dynamics, impl="reference")
    errors = turned_back(problem, truth).check("public", {"out": result.out})
    assert errors["out"] < 1e-5
    assert truth.check("statistic", {"log_norm": result.log_norm})["log_norm"] < 1e-5
    with pytest.raises(WrongResultError):
        truth.check("not turned back", {"out": result.out})


def test_right_attention_passes(problem, truth):
    errors = run(kernel_rivals.eager, problem, truth, has_scalar_gradients=True)
    assert set(errors) == {"out", "grad q", "grad k", "grad v"}
    assert max(errors.values()) < 1e-5


def without_decay(q, k, v, d):
    return kernel_rivals.eager(q, k, v, dataclasses.replace(d, mu=d.mu * 0))


def with_one_lost_row(q, k, v, d):
    out = kernel_rivals.eager(q, k, v, d).clone()
    out[1, 17, 3] *= 1.01
    return out


def with_a_lost_gradient(q, k, v, d):
    return kernel_rivals.eager(q, k.detach() + 0.999 * (k - k.detach()), v, d)


@pytest.mark.parametrize(
    ("attention", "quantity"),
    [(without_decay, "out"), (with_one_lost_row, "out"), (with_a_lost_gradient, "grad k")],
)
def test_wrong_attention_is_caught(attention, quantity, problem, truth):
    with pytest.raises(WrongResultError, match=f"it: {quantity} has relative error"):
        run(attention, problem, truth)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore:The .grad attribute")
def test_flex_attention_in_two_passes_is_rfa(problem, monkeypatch):
    """Uncompiled: on a CPU torch compiles no FlexAttention with the norm. It refuses gradients there, but has them."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    # With so much decay, E of a masked pair would be infinite if its lag were negative.
    dynamics = dataclasses.replace(problem.dynamics, mu=20 * problem.dynamics.mu)
    problem = dataclasses.replace(problem, dynamics=dynamics)
    attention = kernel_rivals.flex(problem.length, "cpu", is_compiled=False)
    errors = run(attention, problem, truth_of(problem, robust_rows))
    assert set(errors) == {"out", "grad q", "grad k", "grad v"} and max(errors.values()) < 1e-5


def test_the_slot_scan_is_checked_with_every_gradient():
    problem = kernel_slots.make_scan("books", "cpu", batch=1, length=5)
    truth = kernel_slots.scan_truth(problem)
    results = problem.results("eager loop")
    assert len(results) == 5 + 8 + 1
    assert results["grad scalars"].shape == (7 * 4,)
    assert max(truth.check("loop", results).values()) < 1e-3
    for name in ("out", "precisions", "grad process", "grad decay", "grad initial means", "grad scalars"):
        with pytest.raises(WrongResultError, match=f"loop: {name} has"):
            truth.check("loop", {**results, name: results[name] * 1.01})


TINY = LanguageRun(
    LanguageModelConfig(vocab_size=64, d_model=32, n_layers=1, n_heads=2, head_dim=8, n_slots=2),
    TrainingConfig(steps=10, batch=3, context=16, learning_rate=1e-2),
)


def test_a_wrong_training_step_is_caught(monkeypatch):
    step = kernel_training.TrainingStep(TINY, "cpu")
    right = kernel_training.loss_and_gradients

    def wrong(model, inputs, targets, *, is_autocast):
        result = right(model, inputs, targets, is_autocast=is_autocast)
        return {**result, "gradients": result["gradients"] * 1.2} if model is step.model else result

    monkeypatch.setattr(kernel_training, "loss_and_gradients", wrong)
    with pytest.raises(WrongResultError, match="step: gradients has"):
        kernel_training.check_step(step, "step")
