"""Speed of attention on a GPU, compared with flash attention, FlexAttention and the eager reference.

Every implementation is checked against float64 on the timed inputs. If another implementation fails, its row
contains the reason. A failure of the fused kernels is raised.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rfa.benchmarks.gpu.paired import Bar, Timer, interleaved, quantiles, ratio
from rfa.benchmarks.kernels import rivals
from rfa.benchmarks.kernels.rivals import Attention
from rfa.benchmarks.kernels.truth import Problem, Truth, make_problem, robust_rows, softmax_rows, truth_of, turned_back
from rfa.model.dynamics import Dynamics

TOKENS = 16_384
HIDDEN = 2048
WIDTHS = (64, 128)
LENGTHS = (2048, 4096, 8192, 16_384)
LONG = 65_536
EAGER_GRADIENT_LENGTH = 4096
ROUNDS = 30
PASSES = ("forward", "backward", "forward+backward")
# Work relative to the matrix products of the forward pass.
WORK = {"forward": 1.0, "backward": 2.5, "forward+backward": 3.5}
OURS, PUBLIC = "fused", "public"
FLASH, FLEX, EAGER = "flash", "flex", "eager"
EVERY = (OURS, FLASH, FLEX, EAGER)
SCALARS = ("mu", "sigma2", "eta2", "gamma2", "nu", "tau")


@dataclass(frozen=True)
class Case:
    """An implementation, with the function that it computes and its timed passes."""

    attention: Attention
    is_robust: bool = True
    has_scalar_gradients: bool = False
    passes: tuple[str, ...] = PASSES


def fused(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics) -> Tensor:
    """Run the fused kernels on rotated inputs, without the precision output, as in training."""
    from rfa.model.attention.triton import fused_attention

    return fused_attention(q, k, v, dynamics, with_precision=False).out


def cases(length: int, device: torch.device | str, names: Sequence[str] = EVERY) -> dict[str, Case]:
    """Return the timed implementations by name. Rivals that were not requested are not created."""
    # The graph of one sequence fits in memory. That of a batch or of a long sequence does not.
    eager_passes = ("forward", "forward+backward") if length <= EAGER_GRADIENT_LENGTH else ("forward",)
    made: dict[str, Callable[[], Case]] = {
        OURS: lambda: Case(fused, has_scalar_gradients=True),
        FLASH: lambda: Case(rivals.flash, is_robust=False),
        FLEX: lambda: Case(rivals.flex(length, device)),
        EAGER: lambda: Case(rivals.eager, has_scalar_gradients=True, passes=eager_passes),
    }
    return {name: made[name]() for name in names}


def matrix_tflop(batch: int, length: int, heads: int, width: int) -> float:
    """Return the matrix work of a causal forward pass in 10^12 operations: two products, half of the pairs."""
    return 2 * 2 * batch * heads * length * length * width / 2 / 1e12


class Runner:
    """One implementation on one problem: its outputs, its gradients, and its passes as calls to time."""

    def __init__(self, case: Case, problem: Problem) -> None:
        d = problem.dynamics
        self.case, self.problem = case, problem
        self.leaves = [x.detach().clone().requires_grad_() for x in problem.rotated]
        scalars = [getattr(d, name).detach().clone() for name in SCALARS]
        if case.has_scalar_gradients:
            self.leaves += [x.requires_grad_() for x in scalars]
        mu, *rest = scalars
        self.dynamics = Dynamics(mu, d.omega, *rest)

    def out(self) -> Tensor:
        q, k, v = self.leaves[:3]
        return self.case.attention(q, k, v, self.dynamics)

    def gradients(self, out: Tensor, *, keep: bool = False) -> tuple[Tensor, ...]:
        return torch.autograd.grad(out, self.leaves, self.problem.grad_out, retain_graph=keep)

    def check(self, name: str, truth: Truth) -> dict[str, float]:
        if self.case.passes == ("forward",):
            with torch.no_grad():
                return truth.check(name, {"out": self.out()})
        out = self.out()
        q, k, v = self.gradients(out)[:3]
        return truth.check(name, {"out": out, "grad q": q, "grad k": k, "grad v": v})

    def calls(self) -> dict[str, Callable[[], object]]:
        """Return the calls to time by pass."""
        kept: list[Tensor] = []

        def forward() -> object:
            with torch.no_grad():
                return self.out()

        def backward() -> object:
            if not kept:
                kept.append(self.out())
            return self.gradients(kept[0], keep=True)

        def both() -> object:
            return self.gradients(self.out())

        every: dict[str, Callable[[], object]] = {"forward": forward, "backward": backward, "forward+backward": both}
        return {name: every[name] for name in self.case.passes}


class Checked:
    """Implementations on one problem, compared with float64.

    errors: relative errors of correct ones. calls: calls to time by (name, pass). failures: rows of failed rivals.
    """

    def __init__(self, problem: Problem, given: dict[str, Case]) -> None:
        self._problem = problem
        self.errors: dict[str, dict[str, float]] = {}
        self.calls: dict[tuple[str, str], Callable[[], object]] = {}
        self.failures: list[dict[str, Any]] = []
        truths: dict[bool, Truth] = {}
        for name, case in given.items():
            if case.is_robust not in truths:
                truths[case.is_robust] = truth_of(problem, robust_rows if case.is_robust else softmax_rows)
            self._check(name, case, truths[case.is_robust])
        if OURS in given:
            self.calls[PUBLIC, "forward"], self.errors[PUBLIC] = _public(problem, truths[True])

    def _check(self, name: str, case: Case, truth: Truth) -> None:
        runner = Runner(case, self._problem)
        try:
            self.errors[name] = runner.check(name, truth)
        except Exception as error:
            if name == OURS:
                raise
            self.failures.append({**self.row(name), "failed": _first_line(error)})
        else:
            self.calls |= {(name, pass_name): call for pass_name, call in runner.calls().items()}
        finally:
            _release()

    def row(self, name: str) -> dict[str, Any]:
        """Return the common entries of all rows of an implementation."""
        batch, length, heads, width = self._problem.grad_out.shape
        return {"measure": "attention", "implementation": name, "batch": batch, "length": length, "heads": heads,
                "width": width, "dtype": str(self._problem.dtype).split(".")[1]}  # fmt: skip


def measure_shape(
    length: int, width: int, given: dict[str, Case], timer: Timer, *, tokens: int = TOKENS, hidden: int = HIDDEN,
    dtype: torch.dtype = torch.bfloat16, device: torch.device | str = "cuda", rounds: int = ROUNDS,
) -> tuple[list[dict[str, Any]], list[Bar]]:  # fmt: skip
    """Return the rows and requirements of one shape."""
    batch, heads = tokens // length, hidden // width
    problem = make_problem(batch, length, heads, width, dtype, device)
    checked = Checked(problem, given)
    rows, calls = list(checked.failures), checked.calls
    samples: dict[tuple[str, str], list[float]] = {}
    for pass_name in PASSES:
        now = {name: call for (name, p), call in calls.items() if p == pass_name}
        found = interleaved(now, timer, rounds=rounds, label=f"{pass_name} {width}×{length}")
        samples |= {(name, pass_name): times for name, times in found.items()}
    for (name, pass_name), times in samples.items():
        tflop = matrix_tflop(batch, length, heads, width) * WORK[pass_name]
        summary = quantiles(times)
        rows.append(
            {**checked.row(name), "pass": pass_name, **summary, "tflops": round(1e3 * tflop / summary["p50_ms"], 1),
             "errors": checked.errors[name]}
        )  # fmt: skip
    return rows, shape_bars(length, width, samples, given)


def _public(problem: Problem, truth: Truth) -> tuple[Callable[[], object], dict[str, float]]:
    """Run the public function with its checks and rotations, forward, and return its row with errors."""
    from rfa.model.attention.api import robust_filter_attention

    def call() -> Tensor:
        with torch.no_grad():
            return robust_filter_attention(*problem.given, problem.dynamics, impl="triton").out

    return call, turned_back(problem, truth).check(PUBLIC, {"out": call()})


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text[:200]}"


def _release() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def shape_bars(
    length: int, width: int, samples: dict[tuple[str, str], list[float]], requested: Collection[str]
) -> list[Bar]:
    """Return the requirements of one shape, on the requested rivals.

    A requirement without a time is not met, except for eager beyond its memory.
    """
    limits = {"forward": {64: 1.25, 128: 1.0}[width], "backward": 1.4}
    where = f"{width} reals, N = {length}"

    def over(a: str, b: str, pass_name: str) -> float | None:
        pair = [samples.get((name, pass_name)) for name in (a, b)]
        return None if pair[0] is None or pair[1] is None else ratio(pair[0], pair[1])

    bars = []
    if FLASH in requested:
        bars += [Bar(f"{p}, ours / flash, {where}", limit, over(OURS, FLASH, p)) for p, limit in limits.items()]
    if FLEX in requested:
        bars += [
            Bar(f"{p}, flex / ours, {where}", 2.0, over(FLEX, OURS, p), is_minimum=True)
            for p in ("forward", "forward+backward")
        ]
    if EAGER in requested and length == 4096:
        bars += [
            Bar(f"{p}, eager / ours, {where}", 5.0, over(EAGER, OURS, p), is_minimum=True)
            for p in ("forward", "forward+backward")
        ]
    return bars


def measure_attention(
    timer: Timer, *, widths: Sequence[int] = WIDTHS, lengths: Sequence[int] = LENGTHS, names: Sequence[str] = EVERY
) -> Iterable[tuple[list[dict[str, Any]], list[Bar]]]:
    """Measure every shape, of ours and of the named rivals."""
    for width, length in itertools.product(widths, lengths):
        yield measure_shape(length, width, cases(length, "cuda", names), timer)
        # Code compiled for one length is not used for the next one.
        torch.compiler.reset()
        _release()


def check_attention(width: int, length: int, *, device: torch.device | str = "cuda") -> dict[str, Any]:
    """Return the errors of ours at one shape without timing, and compile everything that the timing needs."""
    problem = make_problem(TOKENS // length, length, HIDDEN // width, width, torch.bfloat16, device)
    checked = Checked(problem, cases(length, device, (OURS,)))
    for (_, pass_name), call in checked.calls.items():
        if pass_name == "forward":  # without gradients: the check above had them
            call()
    return {"rows": [{**checked.row(name), "errors": errors} for name, errors in checked.errors.items()]}


def peak_bytes(case: Case, problem: Problem) -> int:
    """Return the peak memory of q, k, v, a forward and a backward pass, above what the process held before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    runner = Runner(case, problem)
    runner.gradients(runner.out())
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure_memory(timer: Timer, *, width: int = 64) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Measure the peak memory of ours and of flash attention at N = 64k, and check the heads of ours."""
    heads = HIDDEN // width
    problem = make_problem(1, LONG, heads, width, torch.bfloat16, "cuda")
    shape = {"batch": 1, "length": LONG, "heads": heads, "width": width, "dtype": "bfloat16"}
    own = Case(fused, has_scalar_gradients=True)
    given = {OURS: own, FLASH: Case(rivals.flash, is_robust=False)}
    errors = {}
    for name, rows in ((OURS, robust_rows), (FLASH, softmax_rows)):
        errors[name] = Runner(given[name], problem).check(name, truth_of(problem, rows))
        _release()
    peaks = {name: peak_bytes(case, problem) for name, case in given.items()}
    calls = {name: Runner(case, problem).calls()["forward+backward"] for name, case in given.items()}
    samples = interleaved(calls, timer, rounds=5, warmups=1, label=f"memory {width}×{LONG}")
    rows_of_all = [
        {"measure": "memory", "implementation": name, **shape, "pass": "forward+backward",
         **quantiles(samples[name]), "peak_mib": round(peaks[name] / 2**20, 1), "errors": errors[name]}
        for name in given
    ]  # fmt: skip
    bar = Bar(f"peak memory, ours / flash, {width} reals, N = {LONG}", 1.1, peaks[OURS] / peaks[FLASH])
    return rows_of_all, [bar]
