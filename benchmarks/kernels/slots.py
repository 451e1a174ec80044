"""Speed of the slot scan on a GPU at the shapes of the packaged training configs, compared with the eager loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from rfa.benchmarks.gpu.paired import Bar, Timer, interleaved, quantiles, ratio
from rfa.benchmarks.kernels.truth import Named, Truth, allowances
from rfa.model.layers import RobustMixer
from rfa.model.recurrence.slots import slot_scan
from rfa.model.recurrence.slots_reference import SlotInputs, SlotParameters
from rfa.training.language_config import LanguageRun, find_config

CONFIGS = ("paper", "books")
ROUNDS = 10
OURS, LOOP = "fused", "eager loop"
OUTPUTS = ("out", "log_norm", "precision", "means", "precisions")
# All inputs but the scalars of the heads, which follow.
LEAVES = (*SlotInputs._fields, "initial means", "initial precisions", "decay")
IMPLEMENTATIONS: dict[str, Literal["triton", "reference"]] = {OURS: "triton", LOOP: "reference"}


class ScanProblem:
    """Inputs of a scan: five of the tokens, two of the state, eight parameters; and weights of the outputs."""

    def __init__(self, tensors: list[Tensor], weights: list[Tensor]) -> None:
        self.leaves = [x.detach().clone().requires_grad_() for x in tensors]
        self.weights = weights

    def to(self, dtype: torch.dtype) -> ScanProblem:
        return ScanProblem([x.to(dtype) for x in self.leaves], [x.to(dtype) for x in self.weights])

    def outputs(self, implementation: str) -> list[Tensor]:
        """Return out, log_norm and precision of every token, and means and precisions after the last."""
        tokens, parameters = SlotInputs(*self.leaves[:5]), SlotParameters(*self.leaves[7:])
        means, precisions = self.leaves[5:7]
        impl = IMPLEMENTATIONS[implementation]
        readout, means, precisions = slot_scan(tokens, means, precisions, parameters, impl=impl)
        return [*readout, means, precisions]

    def gradients(self, outputs: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs, self.leaves, self.weights)

    def results(self, implementation: str) -> Named:
        """Return outputs and gradients by name. Gradients of the heads' scalars form one vector of logarithms."""
        outputs = self.outputs(implementation)
        gradients = self.gradients(outputs)
        by_log = [gradient * leaf.detach() for gradient, leaf in zip(gradients[8:], self.leaves[8:], strict=True)]
        names = (*OUTPUTS, *(f"grad {name}" for name in LEAVES), "grad scalars")
        return dict(zip(names, (*(x.detach() for x in outputs), *gradients[:8], torch.cat(by_log)), strict=True))


def make_scan(
    config: str, device: torch.device | str, *, batch: int | None = None, length: int | None = None
) -> ScanProblem:
    """Create the scan of one layer of a packaged config, by default at its training batch and context."""
    run = LanguageRun.from_file(find_config(config))
    batch, length = batch or run.training.batch, length or run.training.context
    torch.manual_seed(0)
    mixer = RobustMixer(run.model).to(device)
    x = torch.randn(batch, length, run.model.d_model, device=device)
    with torch.no_grad():
        dynamics = mixer.dynamics()
        rotated = mixer.rotated(x, mixer.phase(torch.arange(length, device=device)), "recurrent")
        tokens = mixer.slot_inputs(x, rotated, dynamics)
        means, precisions = (part.expand(batch, *part.shape) for part in mixer.initial_state())
        tensors = [*tokens, means, precisions, *mixer.slot_parameters(dynamics)]
        outputs = ScanProblem(tensors, []).outputs(LOOP)
    return ScanProblem(tensors, [torch.randn_like(x) for x in outputs])


def scan_truth(problem: ScanProblem) -> Truth:
    """Run the eager loop in float64, and measure its error in float32."""
    exact = problem.to(torch.float64).results(LOOP)
    return Truth(exact, allowances(exact, problem.results(LOOP), torch.float32), None)


def check_slots() -> dict[str, Any]:
    """Return our errors in both configs without timing."""
    rows = []
    for config in CONFIGS:
        problem = make_scan(config, "cuda")
        errors = scan_truth(problem).check(OURS, problem.results(OURS))
        rows.append({"measure": "slots", "implementation": OURS, **_shape(config, problem), "errors": errors})
    return {"rows": rows}


def _shape(config: str, problem: ScanProblem) -> dict[str, Any]:
    batch, length, heads, width = problem.leaves[0].shape
    return {"config": config, "batch": batch, "length": length, "heads": heads, "width": width,
            "slots": problem.leaves[3].shape[-1], "dtype": "float32"}  # fmt: skip


def measure_slots(timer: Timer, *, rounds: int = ROUNDS) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Measure forward and forward+backward of both configs."""
    rows: list[dict[str, Any]] = []
    for config in CONFIGS:
        problem = make_scan(config, "cuda")
        truth = scan_truth(problem)
        errors = {name: truth.check(name, problem.results(name)) for name in IMPLEMENTATIONS}
        shape = _shape(config, problem)
        for pass_name, make_call in {"forward": _forward, "forward+backward": _both}.items():
            calls = {name: make_call(problem, name) for name in IMPLEMENTATIONS}
            samples = interleaved(calls, timer, rounds=rounds, warmups=2, label=f"slots {config} {pass_name}")
            speedup = round(ratio(samples[LOOP], samples[OURS]), 2)
            rows += [
                {"measure": "slots", "implementation": name, **shape, "pass": pass_name, **quantiles(times),
                 "loop_over_fused": speedup, "errors": errors[name]}
                for name, times in samples.items()
            ]  # fmt: skip
    return rows, []


def _forward(problem: ScanProblem, name: str) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad():
            return problem.outputs(name)

    return call


def _both(problem: ScanProblem, name: str) -> Callable[[], object]:
    return lambda: problem.gradients(problem.outputs(name))
