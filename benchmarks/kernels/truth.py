"""Attention in float64 and O(N) memory: the check before every timing.

Some heads are computed in full, with gradients of q, k and v. The error may be twice that of the eager code in float32,
rounded to the inputs' dtype, plus one rounding. Tests check the gradients of the heads' scalars (`tests/rounding.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rfa.benchmarks.kernels.cases import rfa_inputs
from rfa.model.attention.reference import attend
from rfa.model.dynamics import Dynamics, rotate, wrapped_phase

CHUNK = 512

Named = dict[str, Tensor]
# q, k, v `[B, N, h, W]` and the dynamics of these h heads → out and row statistics of the last n queries.
Rows = Callable[[Tensor, Tensor, Tensor, Dynamics], Named]


class WrongResultError(ValueError):
    """The numbers of an implementation differ from those of float64, so its time is meaningless."""


@dataclass(frozen=True)
class Problem:
    """Inputs of attention over the tokens 0 … N-1.

    given: q, k, v `[B, N, H, W]`. rotated: the same in the rotating frame. grad_out: gradient of out in the rotating
    frame.
    """

    given: tuple[Tensor, Tensor, Tensor]
    rotated: tuple[Tensor, Tensor, Tensor]
    grad_out: Tensor
    dynamics: Dynamics

    @property
    def dtype(self) -> torch.dtype:
        return self.grad_out.dtype

    @property
    def length(self) -> int:
        return self.grad_out.shape[1]

    @property
    def heads(self) -> list[int]:
        """Return the checked heads: the first does not decay, the last does."""
        return sorted({0, self.dynamics.n_heads - 1})


def make_problem(
    batch: int, length: int, heads: int, width: int, dtype: torch.dtype, device: torch.device | str, *, seed: int = 0
) -> Problem:
    """Draw standard normal q, k, v and gradient. A quarter of the heads does not decay."""
    generator = torch.Generator(device).manual_seed(seed)
    shape = (batch, length, heads, width)
    q, k, v, grad_out = (torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(4))
    few = rfa_inputs(1, 1, heads, width // 2, dtype=torch.float32, device=device, zero_decay_heads=max(1, heads // 4))
    phase = wrapped_phase(few.dynamics.omega, torch.arange(length, device=device), torch.float32)
    rotated_q, rotated_k, rotated_v = (rotate(x.float(), -phase).to(dtype) for x in (q, k, v))
    return Problem((q, k, v), (rotated_q, rotated_k, rotated_v), grad_out, few.dynamics)


def robust_rows(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics) -> Named:
    """Return RFA of the last n tokens over all of theirs, eager."""
    key_times = torch.arange(k.shape[1], device=k.device, dtype=torch.float64)[None]
    result = attend(q, k, v, dynamics, query_times=key_times[:, -q.shape[1] :], key_times=key_times)
    return {"out": result.out, "log_norm": result.log_norm}


def softmax_rows(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics) -> Named:
    """Return causal dot-product attention of the last n tokens over all of theirs, eager, without dynamics."""
    n, total = q.shape[1], k.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    index = torch.arange(total, device=q.device)
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    logits = logits.masked_fill(index > index[total - n :, None], -torch.inf)
    return {"out": (F.softmax(logits, dim=-1) @ v).transpose(1, 2)}


def _of_heads(dynamics: Dynamics, heads: Sequence[int], dtype: torch.dtype) -> Dynamics:
    d = dynamics
    parts = (d.mu, d.omega, d.sigma2, d.eta2, d.gamma2, d.nu, d.tau)
    return Dynamics(*(part[list(heads)].to(dtype) for part in parts))


def by_chunks(problem: Problem, rows: Rows, dtype: torch.dtype, *, with_gradients: bool = True) -> Named:
    """Return outputs and gradients of the checked heads, computed in `dtype`."""
    heads = problem.heads
    q, k, v = (x[:, :, heads].to(dtype).requires_grad_(with_gradients) for x in problem.rotated)
    grad_out = problem.grad_out[:, :, heads].to(dtype)
    dynamics = _of_heads(problem.dynamics, heads, dtype)
    batch, length = q.shape[:2]
    parts: list[list[Named]] = []
    for i in range(batch):
        parts.append([])
        for start in range(0, length, CHUNK):
            stop = min(start + CHUNK, length)
            own = slice(i, i + 1)
            with torch.set_grad_enabled(with_gradients):
                found = rows(q[own, start:stop], k[own, :stop], v[own, :stop], dynamics)
            if with_gradients:
                found["out"].backward(grad_out[own, start:stop])
            parts[-1].append({name: x.detach() for name, x in found.items()})
    out = {name: torch.cat([torch.cat([part[name] for part in row], 1) for row in parts]) for name in parts[0][0]}
    gradients = {"grad q": q.grad, "grad k": k.grad, "grad v": v.grad}
    return out | {name: x for name, x in gradients.items() if x is not None}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return |actual - expected| / |expected|, or 0 if both vanish."""
    error = float((actual.double() - expected.double()).norm())
    return error / float(expected.double().norm()) if error else 0.0


@dataclass(frozen=True)
class Truth:
    """Results in float64 and allowed errors. heads: the checked heads of `[B, N, H, …]`; None: all."""

    exact: Named
    allowed: Mapping[str, float]
    heads: Sequence[int] | None

    def check(self, name: str, actual: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the relative errors of the outputs of an implementation, and raise if one is too large."""
        errors = {}
        for quantity, values in actual.items():
            expected = self.exact[quantity]
            checked = values.detach() if self.heads is None else values.detach()[:, :, list(self.heads)]
            error = relative_error(checked, expected)
            if not error <= self.allowed[quantity]:
                raise WrongResultError(
                    f"{name}: {quantity} has relative error {error:.2e}, allowed {self.allowed[quantity]:.2e}"
                )
            errors[quantity] = float(f"{error:.2e}")
        return errors


def truth_of(problem: Problem, rows: Rows, *, with_gradients: bool = True) -> Truth:
    """Compute the checked heads in float64 and in float32."""
    exact = by_chunks(problem, rows, torch.float64, with_gradients=with_gradients)
    eager = by_chunks(problem, rows, torch.float32, with_gradients=with_gradients)
    rounded = {name: x if name == "log_norm" else x.to(problem.dtype) for name, x in eager.items()}
    return Truth(exact, allowances(exact, rounded, problem.dtype), problem.heads)


def allowances(exact: Named, eager: Named, dtype: torch.dtype) -> dict[str, float]:
    """Return twice the error of the eager code, plus one rounding."""
    return {name: 2 * relative_error(eager[name], x) + torch.finfo(dtype).eps for name, x in exact.items()}


def turned_back(problem: Problem, truth: Truth) -> Truth:
    """Return the results for an implementation that rotates itself, with out in the frame of the given inputs."""
    positions = torch.arange(problem.length, device=problem.grad_out.device)
    phase = wrapped_phase(problem.dynamics.omega[problem.heads], positions, torch.float64)
    return Truth({**truth.exact, "out": rotate(truth.exact["out"], phase)}, truth.allowed, truth.heads)
