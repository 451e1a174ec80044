"""`rfa bench kernel` as far as it goes without a GPU: the check before the timing, pairs, rows, bars, refusals."""

import dataclasses
import itertools
import json

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from rfa.benchmarks.gpu.paired import Bar, EventTimer, interleaved, quantiles, ratio
from rfa.benchmarks.kernels import attention as kernel_attention
from rfa.benchmarks.kernels import rivals as kernel_rivals
from rfa.benchmarks.kernels import slots as kernel_slots
from rfa.benchmarks.kernels import speed as kernel
from rfa.benchmarks.kernels import training as kernel_training
from rfa.benchmarks.kernels import truth as kernel_truth
from rfa.benchmarks.kernels.attention import Case, Runner
from rfa.benchmarks.kernels.truth import (
    WrongResultError,
    by_chunks,
    make_problem,
    robust_rows,
    softmax_rows,
    truth_of,
    turned_back,
)
from rfa.cli.main import app
from rfa.model.attention.api import robust_filter_attention
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.language_config import LanguageRun, TrainingConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@needs_no_gpu
def test_without_a_gpu_it_says_so_and_exits_with_2(tmp_path):
    out = tmp_path / "kernel.json"
    result = CliRunner().invoke(app, ["bench", "kernel", "--out", str(out)], prog_name="rfa")
    assert result.exit_code == 2
    assert "this measurement needs" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(("option", "value"), [("--part", "everything"), ("--width", "65"), ("--length", "1000")])
def test_what_is_not_measured_is_refused(option, value):
    result = CliRunner().invoke(app, ["bench", "kernel", option, value], prog_name="rfa")
    assert result.exit_code == 1
    assert f"{option[2:]} must be one of" in result.stderr


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


def test_slow_cases_get_fewer_rounds_and_equally_many():
    clock = itertools.count(0.0, 1.0)
    samples = interleaved({"a": int, "b": int}, lambda call: 1.0, rounds=30, warmups=0, clock=lambda: next(clock))
    # Five without a look at the clock, and then until it says more than two seconds: a second a look.
    assert [len(found) for found in samples.values()] == [7, 7]


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


def test_the_truth_does_not_depend_on_its_chunks(problem, truth, monkeypatch):
    monkeypatch.setattr(kernel_truth, "CHUNK", 11)
    for name, values in by_chunks(problem, robust_rows, torch.float64).items():
        assert values == pytest.approx(truth.exact[name].numpy(), rel=1e-9, abs=1e-10), name
    assert set(truth.exact) == {"out", "log_norm", "grad q", "grad k", "grad v"}
    assert truth.exact["out"].shape == (2, 37, 2, 8)


def test_the_truth_is_the_reference(problem, truth):
    """Against the public function, which rotates: the given inputs, not the rotated ones."""
    q, k, v = problem.given
    result = robust_filter_attention(q, k, v, problem.dynamics, impl="reference")
    errors = turned_back(problem, truth).check("public", {"out": result.out})
    assert errors["out"] < 1e-5
    assert truth.check("statistic", {"log_norm": result.log_norm})["log_norm"] < 1e-5
    with pytest.raises(WrongResultError):
        truth.check("not turned back", {"out": result.out})


def test_the_softmax_truth_is_softmax_attention(problem):
    truth = truth_of(problem, softmax_rows)
    assert run(kernel_rivals.flash, problem, truth)["grad k"] < 1e-5
    q, k, v = (x.transpose(1, 2).double() for x in problem.rotated)
    plain = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    assert truth.check("sdpa", {"out": plain})["out"] < 1e-12


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


def unnumbered(q, k, v, d):
    return kernel_rivals.eager(q, k, v, d) * float("nan")


@pytest.mark.parametrize(
    ("attention", "quantity"),
    [(without_decay, "out"), (with_one_lost_row, "out"), (with_a_lost_gradient, "grad k"), (unnumbered, "out")],
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


def test_the_fused_kernels_pass_their_check():
    """In Triton's interpreter where there is no GPU; the public function too, which rotates by itself."""
    small = make_problem(1, 20, 2, 16, torch.float32, DEVICE)
    truth = truth_of(small, robust_rows)
    assert set(run(kernel_attention.fused, small, truth, has_scalar_gradients=True)) == {
        "out", "grad q", "grad k", "grad v",
    }  # fmt: skip
    call, errors = kernel_attention._public(small, truth)
    assert set(errors) == {"out"}
    result = call()
    assert isinstance(result, torch.Tensor) and not result.requires_grad


def counting_timer():
    clock = itertools.count(1.0)

    def timer(call):
        call()
        return next(clock)

    return timer


def measure_tiny(given, monkeypatch):
    monkeypatch.setattr(kernel_attention, "fused", kernel_rivals.eager)
    return kernel_attention.measure_shape(
        16, 64, given, counting_timer(), tokens=32, hidden=128, dtype=torch.float32, device="cpu", rounds=2
    )


def no_memory(q, k, v, d):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried to allocate")


@pytest.fixture
def eager_public(monkeypatch):
    """The public function without its kernels."""
    original = robust_filter_attention
    monkeypatch.setattr(
        "rfa.model.attention.api.robust_filter_attention",
        lambda *args, impl, **kw: original(*args, impl="reference", **kw),
    )


def test_a_shape_gives_rows_and_bars(eager_public, monkeypatch):
    given = {
        "fused": Case(kernel_rivals.eager, has_scalar_gradients=True),
        "flash": Case(kernel_rivals.flash, is_robust=False),
        "flex": Case(without_decay),
        "eager": Case(no_memory),
    }
    rows, bars = measure_tiny(given, monkeypatch)
    timed = {(row["implementation"], row["pass"]): row for row in rows if "pass" in row}
    assert set(timed) == {("public", "forward")} | set(
        itertools.product(("fused", "flash"), ("forward", "backward", "forward+backward"))
    )
    row = timed["fused", "backward"]
    assert (row["batch"], row["length"], row["heads"], row["width"], row["dtype"]) == (2, 16, 2, 64, "float32")
    work = 2.5 * 2 * (2 * 2) * 16 * 16 * 64  # 10^9 operations of the backward pass: B H pairs 2 products
    assert row["tflops"] == round(work / 1e9 / row["p50_ms"], 1)
    assert row["p20_ms"] < row["p50_ms"] < row["p80_ms"]
    failed = {row["implementation"]: row["failed"] for row in rows if "failed" in row}
    assert failed["eager"] == "OutOfMemoryError: CUDA out of memory."
    assert failed["flex"].startswith("WrongResultError: flex: out has relative error")
    met = {bar.name.split(",")[0] + bar.name.split(",")[1]: bar for bar in bars}
    assert met["forward ours / flash"].actual is not None
    assert met["forward flex / ours"].actual is None
    assert not met["forward flex / ours"].is_met
    json.dumps(rows, allow_nan=False)


def test_what_is_only_checked_has_errors_and_no_time(eager_public, monkeypatch):
    monkeypatch.setattr(kernel_attention, "TOKENS", 32)
    monkeypatch.setattr(kernel_attention, "HIDDEN", 128)
    monkeypatch.setattr(kernel_attention, "fused", kernel_rivals.eager)
    (ours, public) = kernel_attention.check_attention(64, 16, device="cpu")["rows"]
    assert [row["implementation"] for row in (ours, public)] == ["fused", "public"]
    assert ours["errors"].keys() == {"out", "grad q", "grad k", "grad v"} and "p50_ms" not in ours
    assert (ours["batch"], ours["length"], ours["heads"], ours["width"]) == (2, 16, 2, 64)
    monkeypatch.setattr(kernel_attention, "fused", without_decay)
    with pytest.raises(WrongResultError, match="fused: out"):
        kernel_attention.check_attention(64, 16, device="cpu")


def test_a_rival_that_is_not_asked_for_is_not_made_and_has_no_bar(eager_public, monkeypatch):
    monkeypatch.setattr(kernel_rivals, "flex", lambda *_: pytest.fail("made"))
    monkeypatch.setattr(kernel_attention, "fused", kernel_rivals.eager)
    monkeypatch.setattr(kernel_rivals, "flash", kernel_rivals.eager)
    _, bars = measure_tiny(kernel_attention.cases(16, "cpu", ("fused", "flash")), monkeypatch)
    assert [bar.name for bar in bars] == [f"{p}, ours / flash, 64 reals, N = 16" for p in ("forward", "backward")]
    _, bars = measure_tiny({"fused": Case(kernel_rivals.eager), "flex": Case(no_memory)}, monkeypatch)
    assert [bar.name.split(", 64")[0] for bar in bars] == ["forward, flex / ours", "forward+backward, flex / ours"]
    with pytest.raises(pytest.fail.Exception, match="made"):
        kernel_attention.cases(16, "cpu")


@needs_gpu
@pytest.mark.filterwarnings("ignore")
def test_a_small_shape_is_measured_on_a_gpu():
    given = kernel_attention.cases(256, "cuda")
    rows, bars = kernel_attention.measure_shape(256, 64, given, EventTimer(), tokens=512, hidden=128, rounds=3)
    assert [row for row in rows if "failed" in row] == []
    assert all(row["p50_ms"] > 0 for row in rows)
    assert all(bar.actual is not None for bar in bars)


@needs_gpu
def test_peak_memory_is_that_of_the_pass():
    small = make_problem(1, 4096, 2, 64, torch.bfloat16, "cuda")
    case = Case(kernel_attention.fused, has_scalar_gradients=True)
    # q, k, v, out and their gradients, at least; a matrix of all pairs, never.
    assert 7 * small.grad_out.nbytes < kernel_attention.peak_bytes(case, small) < 4096 * 4096 * 2


def test_rows_of_other_parts_are_kept_and_measured_ones_replaced(tmp_path):
    out = tmp_path / "kernel.json"
    here = {"commit": "abc", "hardware": {"device": "G"}}
    row = {"measure": "attention", "implementation": "fused", "batch": 1, "length": 2, "pass": "forward", "p50_ms": 1.0}
    first = kernel.merged(kernel.started(here, out), [row, {**row, "length": 4}], [{"name": "a", "met": False}])
    out.write_text(json.dumps(first))
    second = kernel.merged(kernel.started(here, out), [{**row, "p50_ms": 2.0}], [{"name": "a", "met": True}])
    assert [(r["length"], r["p50_ms"]) for r in second["rows"]] == [(4, 1.0), (2, 2.0)]
    assert second["bars"] == [{"name": "a", "met": True}]
    assert kernel.started({**here, "commit": "def"}, out)["rows"] == []


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


@pytest.mark.parametrize("mixer", ["rfa", "softmax"])
def test_a_training_step_trains(mixer):
    run = dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, mixer=mixer))
    step = kernel_training.TrainingStep(run, "cpu")
    assert max(kernel_training.check_step(step, mixer).values()) < 0.05
    losses = [step() for _ in range(8)]
    assert losses[-1] < losses[0]


@needs_gpu
def test_a_training_step_on_a_gpu_is_checked_against_the_cpu():
    step = kernel_training.TrainingStep(TINY, "cuda")
    assert set(kernel_training.check_step(step, "rfa")) == {"loss", "gradients"}
    assert step() > 0


def test_a_wrong_training_step_is_caught(monkeypatch):
    step = kernel_training.TrainingStep(TINY, "cpu")
    right = kernel_training.loss_and_gradients

    def wrong(model, inputs, targets, *, is_autocast):
        result = right(model, inputs, targets, is_autocast=is_autocast)
        return {**result, "gradients": result["gradients"] * 1.2} if model is step.model else result

    monkeypatch.setattr(kernel_training, "loss_and_gradients", wrong)
    with pytest.raises(WrongResultError, match="step: gradients has"):
        kernel_training.check_step(step, "step")


def test_the_fused_scan_passes_its_check():
    """In Triton's interpreter where there is no GPU."""
    problem = kernel_slots.make_scan("books", DEVICE, batch=1, length=3)
    kernel_slots.scan_truth(problem).check("fused", problem.results("fused"))
