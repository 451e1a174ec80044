"""A training step of the paper-size model with RFA and with softmax attention, on a GPU in bfloat16.

First, loss and gradients of a small batch are compared with a CPU and the eager reference.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rfa.benchmarks.gpu.paired import Bar, Timer, interleaved, quantiles, ratio
from rfa.benchmarks.kernels.truth import Named, Truth, allowances
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import Mixer
from rfa.training.language import cross_entropy
from rfa.training.language_config import LanguageRun, find_config
from rfa.training.optimiser import is_sde_parameter, parameter_groups

CONFIG = "paper"
ROUNDS = 30
CHECKED_SEQUENCES = 2
BAR = 1.15
# The variant of the papers' models for each mixer; None: the unchanged configuration.
VARIANTS: dict[Mixer, str | None] = {"rfa": None, "softmax": "B1"}
MIXERS = tuple(VARIANTS)


class TrainingStep:
    """A model with its optimiser and one batch of random tokens; each call is a step."""

    def __init__(self, run: LanguageRun, device: torch.device | str) -> None:
        torch.manual_seed(0)
        self.config = run.training
        self.model = LanguageModel(run.model).to(device)
        self.optimiser = torch.optim.AdamW(
            parameter_groups(self.model, run.training), lr=run.training.learning_rate, fused=True
        )
        shape = (run.training.batch, run.training.context + 1)
        tokens = torch.randint(run.model.vocab_size, shape, generator=torch.Generator().manual_seed(0)).to(device)
        self.inputs, self.targets = tokens[:, :-1], tokens[:, 1:]
        named = list(self.model.named_parameters())
        self.sde = [p for name, p in named if is_sde_parameter(name)]
        self.weights = [p for name, p in named if not is_sde_parameter(name)]

    def __call__(self) -> float:
        self.optimiser.zero_grad(set_to_none=True)
        # Flash attention for the softmax model, or an error.
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            loss = loss_of(self.model, self.inputs, self.targets, is_autocast=True)
            loss.backward()
        nn.utils.clip_grad_norm_(self.weights, self.config.clip)
        if self.sde:
            nn.utils.clip_grad_norm_(self.sde, self.config.sde_clip)
        self.optimiser.step()
        return float(loss.detach())


def loss_of(model: LanguageModel, inputs: Tensor, targets: Tensor, *, is_autocast: bool) -> Tensor:
    """Return the cross-entropy of the attention mode."""
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=is_autocast):
        return cross_entropy(model, inputs, targets, "attention")


def loss_and_gradients(model: LanguageModel, inputs: Tensor, targets: Tensor, *, is_autocast: bool) -> Named:
    """Return the loss, and the gradients of all parameters used by attention as one vector, on the CPU."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, inputs, targets, is_autocast=is_autocast)
    loss.backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return {"loss": loss.detach().cpu(), "gradients": torch.cat(gradients).cpu()}


def check_step(step: TrainingStep, name: str) -> dict[str, float]:
    """Return the errors of loss and gradients of the first sequences, against a CPU in float32."""
    inputs, targets = step.inputs[:CHECKED_SEQUENCES], step.targets[:CHECKED_SEQUENCES]
    on_cpu = copy.deepcopy(step.model).cpu()
    batch = inputs.cpu(), targets.cpu()
    exact = loss_and_gradients(on_cpu, *batch, is_autocast=False)
    eager = loss_and_gradients(on_cpu, *batch, is_autocast=True)
    truth = Truth(exact, allowances(exact, eager, torch.bfloat16), None)
    return truth.check(name, loss_and_gradients(step.model, inputs, targets, is_autocast=True))


def config_of(mixer: Mixer) -> LanguageRun:
    """Return the paper's configuration with one or the other mixer."""
    return LanguageRun.from_file(find_config(CONFIG), VARIANTS[mixer])


def measure_training(timer: Timer, *, rounds: int = ROUNDS) -> tuple[list[dict[str, Any]], list[Bar]]:
    """Measure both models and the requirement on their ratio."""
    steps: dict[str, TrainingStep] = {mixer: TrainingStep(config_of(mixer), "cuda") for mixer in MIXERS}
    errors = {mixer: check_step(step, mixer) for mixer, step in steps.items()}
    samples = interleaved(steps, timer, rounds=rounds, label="training steps")
    rows = []
    for mixer, times in samples.items():
        batch, length = steps[mixer].inputs.shape
        summary = quantiles(times)
        rows.append(
            {"measure": "training step", "implementation": mixer, "config": CONFIG, "batch": batch, "length": length,
             "dtype": "bfloat16", **summary, "tokens_per_second": round(1e3 * batch * length / summary["p50_ms"]),
             "errors": errors[mixer]}
        )  # fmt: skip
    bar = Bar("training step, RFA / softmax", BAR, ratio(samples["rfa"], samples["softmax"]))
    return rows, [bar]
