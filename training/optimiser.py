"""Optimisers with parameter groups, a learning rate schedule, and a running average of the weights.

The default is the paper's recipe (Racioppo, Robust Filter Attention, E.1): Adam, one cycle of the learning rate, and a
separate group for the SDE scalars with beta1 = 0 and a lower clipping threshold. Options replace parts of it:

    muon   W [A, B] ← W − rate · 0.2 √max(A, B) · U Vᵀ, where U S Vᵀ is the momentum, for matrices inside the blocks
           (Jordan et al. 2024; the factor of Liu et al. 2025 gives steps of Adam's size)
    wsd    warm-up, a constant rate, a decay to zero over the last `decay_fraction` of the steps (Hu et al. 2024)
    ema    w̄ ← ema · w̄ + (1 − ema) · w after every step; w̄ is validated and saved
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rfa.runtime.text.config import StrictConfig, check_choice
from rfa.training.device import PRECISIONS, uses_bfloat16
from rfa.training.muon import Float32Muon
from rfa.training.processes import part_like

OPTIMISERS = ("adam", "muon")
SCHEDULES = ("onecycle", "wsd")
DECAYS = ("linear", "sqrt")

# Matrices with a smaller dimension than this are parameters of heads and slots. They are trained without weight decay
# and without Muon.
NARROWEST_MATRIX = 17
# Prefix of the keys of the trained weights, and key of the number of averaged steps, in the state.
WEIGHTS, COUNT = "weights", "n_averaged"


@dataclass(frozen=True)
class OptimiserConfig(StrictConfig):
    """Optimiser settings. Learning rates are the peaks of the schedule.

    Attributes:
        steps: Total number of steps.
        optimiser: If it is "muon", the matrices of the blocks are trained with Muon at `matrix_learning_rate`, and all
            other parameters with Adam.
        learning_rate: Learning rate of Adam.
        matrix_learning_rate: Learning rate of Muon.
        sde_learning_rate: Learning rate of the scalar parameters of the SDE.
        weight_decay: Weight decay of matrices.
        beta1, beta2: Decay rates of the moments of Adam.
        clip: Maximum gradient norm of the weights.
        sde_clip: Maximum gradient norm of the scalar parameters of the SDE.
        schedule: Schedule of the learning rate: "onecycle" (torch's OneCycleLR) or "wsd" (warm-up, stable phase,
            decay).
        warmup_fraction: Fraction of the steps during which the learning rate increases.
        decay_fraction: Fraction of the steps during which the learning rate decreases under "wsd".
        decay: Shape of the last `decay_fraction` of the steps under "wsd": 1 − x ("linear") or 1 − √x ("sqrt").
        ema: Weight of the old value in the running average. 0 disables the average.
        matrix_precision: Precision of the matrix products of Muon, one of `PRECISIONS`.
    """

    steps: int
    optimiser: Literal["adam", "muon"] = "adam"
    learning_rate: float = 1e-3
    matrix_learning_rate: float = 2e-3
    sde_learning_rate: float = 5e-4
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    clip: float = 1.0
    sde_clip: float = 1e-4
    schedule: Literal["onecycle", "wsd"] = "onecycle"
    warmup_fraction: float = 0.05
    decay_fraction: float = 0.7
    decay: Literal["linear", "sqrt"] = "linear"
    ema: float = 0.0
    matrix_precision: str = "auto"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be >= 1, got {self.steps}")
        check_choice("optimiser", self.optimiser, OPTIMISERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("decay", self.decay, DECAYS)
        check_choice("matrix_precision", self.matrix_precision, PRECISIONS)
        if not self.matrix_learning_rate > 0:
            raise ValueError(f"matrix_learning_rate must be positive, got {self.matrix_learning_rate}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must be in [0, 1), got {self.ema}")
        if not 0 < self.decay_fraction <= 1:
            raise ValueError(f"decay_fraction must be in (0, 1], got {self.decay_fraction}")
        if self.schedule == "wsd" and self.warmup_fraction + self.decay_fraction > 1:
            raise ValueError(
                "warmup_fraction + decay_fraction must be <= 1 under schedule 'wsd', "
                f"got {self.warmup_fraction} + {self.decay_fraction}"
            )


def one_cycle(step: float, steps: int, warmup_fraction: float) -> float:
    """Return the learning rate as a fraction of its peak under torch's OneCycleLR. It rises along a cosine from 1/25 to
    1, then falls along a cosine to 1e-4 / 25.
    """
    start, end = 1 / 25, 1 / 25 / 1e4
    warmup = max(1.0, warmup_fraction * steps) - 1
    if step <= warmup:
        low, high, progress = start, 1.0, step / max(warmup, 1)
    else:
        low, high, progress = 1.0, end, (step - warmup) / max(steps - 1 - warmup, 1)
    return high + (low - high) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def warmup_stable_decay(
    step: float, steps: int, warmup_fraction: float, decay_fraction: float, decay: Literal["linear", "sqrt"]
) -> float:
    """Return the learning rate as a fraction of its peak. It rises linearly, is then constant, and decays to zero at
    step `steps`."""
    up = (step + 1) / max(1.0, warmup_fraction * steps)
    done = max(0.0, 1 - (steps - step) / (decay_fraction * steps))
    return min(1.0, up) * (1 - (math.sqrt(done) if decay == "sqrt" else done))


def rate_factor(step: float, config: OptimiserConfig) -> float:
    """Return the learning rate of a step as a fraction of its peak."""
    if config.schedule == "wsd":
        return warmup_stable_decay(step, config.steps, config.warmup_fraction, config.decay_fraction, config.decay)
    return one_cycle(step, config.steps, config.warmup_fraction)


def is_sde_parameter(name: str) -> bool:
    """Return whether a parameter is an SDE scalar (noises, nu, tau, confidence gate). The paper trains these in a
    separate group."""
    return ".dynamics." in name or ".confidence." in name


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.dim() == 2 and min(parameter.shape) >= NARROWEST_MATRIX


def block_matrices(module: nn.Module) -> list[Tensor]:
    """Return the weights of the linear layers in the blocks, for Muon.

    The embedding, which is also the output head, and the parameters of heads and slots are excluded, because they are
    not matrices that map activations to activations.
    """
    return [
        parameter
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and name.startswith("blocks.") and not is_sde_parameter(f"{name}.weight")
        for parameter in layer.parameters(recurse=False)
        if _is_matrix(parameter)
    ]


def parameter_groups(module: nn.Module, config: OptimiserConfig) -> list[dict[str, Any]]:
    """Return the parameter groups for Adam: matrices (with weight decay), other weights, and SDE scalars."""
    elsewhere = {id(p) for p in block_matrices(module)} if config.optimiser == "muon" else set()
    named = [(name, p) for name, p in module.named_parameters() if id(p) not in elsewhere]
    sde = [p for name, p in named if is_sde_parameter(name)]
    weights = [p for name, p in named if not is_sde_parameter(name)]
    common = {"peak": config.learning_rate, "betas": (config.beta1, config.beta2), "eps": 1e-8}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in weights if _is_matrix(p)], "weight_decay": config.weight_decay, **common},
        {"params": [p for p in weights if not _is_matrix(p)], "weight_decay": 0.0, **common},
    ]
    if sde:
        own = {"peak": config.sde_learning_rate, "betas": (0.0, config.beta2), "eps": 1e-7}
        groups.append({"params": sde, "weight_decay": 0.0, **own})
    return groups


def clip_gradients(module: nn.Module, config: OptimiserConfig) -> None:
    """Clip the gradient norms of the weights and of the SDE scalars separately."""
    sde: list[nn.Parameter] = []
    weights: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        (sde if is_sde_parameter(name) else weights).append(parameter)
    nn.utils.clip_grad_norm_(weights, config.clip)
    if sde:
        nn.utils.clip_grad_norm_(sde, config.sde_clip)


def moments(module: nn.Module, parts: Iterable[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return the state of torch's optimisers as tensors with the names `<key>.<parameter>`."""
    return {
        f"{key}.{name}": value
        for name, parameter in module.named_parameters()
        for part in parts
        for key, value in part.state.get(parameter, {}).items()
    }


def load_moments(module: nn.Module, parts: Iterable[torch.optim.Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Load the state that `moments` returned. It has no entries for parameters that never had a gradient."""
    named = dict(module.named_parameters())
    part_of = {p: part for part in parts for group in part.param_groups for p in group["params"]}
    for label, tensor in tensors.items():
        key, _, name = label.partition(".")
        part_of[named[name]].state[named[name]][key] = part_like(tensor, named[name])


class Optimiser:
    """Updates every parameter of a module, and the running average of the parameters if one is configured.

    The average starts as a copy of `module`. To resume, create the optimiser from the saved model, then call
    `load_state`.
    """

    def __init__(self, module: nn.Module, config: OptimiserConfig) -> None:
        self.module, self.config = module, config
        adam = torch.optim.AdamW(parameter_groups(module, config), lr=config.learning_rate, fused=True)
        self.parts: list[torch.optim.Optimizer] = [adam]
        if config.optimiser == "muon":
            group = {"params": block_matrices(module), "peak": config.matrix_learning_rate}
            device = next(module.parameters()).device
            muon = torch.optim.Muon if uses_bfloat16(config.matrix_precision, device) else Float32Muon
            self.parts.append(
                muon(
                    [group],
                    lr=config.matrix_learning_rate,
                    weight_decay=config.weight_decay,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        self.average: AveragedModel | None = None
        if config.ema:
            self.average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(config.ema))

    @property
    def averaged(self) -> nn.Module:
        """Running average of the module. Without a running average, it is the trained module."""
        return self.module if self.average is None else self.average.module

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self, step: float) -> None:
        """Clip the gradients, and update the parameters with the learning rates of step `step`, which may be
        fractional.
        """
        clip_gradients(self.module, self.config)
        factor = rate_factor(step, self.config)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["peak"] * factor
            part.step()
        if self.average is not None:
            self.average.update_parameters(self.module)

    def state(self) -> dict[str, Tensor]:
        """Return the state that is needed to resume in addition to the saved model. Its tensors have the names
        `<key>.<parameter>`."""
        tensors = moments(self.module, self.parts)
        if self.average is not None:
            tensors |= {f"{WEIGHTS}.{name}": parameter for name, parameter in self.module.named_parameters()}
            tensors[COUNT] = self.average.n_averaged
        return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from a state that `state` returned. It has no entries for parameters that never had a gradient."""
        named, rest = dict(self.module.named_parameters()), {}
        for label, tensor in tensors.items():
            key, _, name = label.partition(".")
            if key == COUNT and self.average is not None:
                self.average.n_averaged.copy_(tensor)
            elif key == WEIGHTS:
                named[name].copy_(tensor)
            else:
                rest[label] = tensor
        load_moments(self.module, self.parts, rest)
