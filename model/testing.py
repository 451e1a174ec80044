"""Input factories and the one tolerance rule for every faster path of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from model.attention.api import robust_filter_attention
from model.attention.reference import AttentionResult
from model.dynamics import Dynamics, banded_frequencies


class AttentionInputs(NamedTuple):
    """Arguments of `robust_filter_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    dynamics: Dynamics
    times: Tensor | None

    def to(self, dtype: torch.dtype) -> AttentionInputs:
        """The same values in another dtype; times stay float64."""
        return AttentionInputs(
            self.q.to(dtype), self.k.to(dtype), self.v.to(dtype), self.dynamics.to(dtype), self.times
        )


def rfa_inputs(
    batch: int,
    length: int,
    heads: int,
    complex_dims: int,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    zero_decay_heads: int = 1,
    irregular: bool = False,
    scale: float = 1.0,
) -> AttentionInputs:
    """Random inputs whose values do not depend on the dtype; the first heads do not decay, times may be irregular
    with ties.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(heads, generator=generator, dtype=torch.float64)

    q, k, v = (scale * normal(batch, length, heads, 2 * complex_dims) for _ in range(3))
    mu = uniform(0.01, 0.3)
    mu[:zero_decay_heads] = 0
    dynamics = Dynamics(
        mu=mu,
        omega=banded_frequencies(heads, complex_dims) if complex_dims % 2 == 0 else normal(heads, complex_dims),
        sigma2=uniform(0.05, 0.5),
        eta2=uniform(0.2, 2),
        gamma2=uniform(0.1, 1),
        nu=uniform(3, 4 * complex_dims + 3),
        tau=uniform(0.5, 2),
    )
    gaps = torch.rand(batch, length, generator=generator, dtype=torch.float64) * 2
    gaps[:, 1::5] = 0
    return AttentionInputs(q, k, v, dynamics, gaps.cumsum(-1) if irregular else None).to(dtype)


def _outputs_and_gradients(attention: Callable[..., AttentionResult], inputs: AttentionInputs) -> dict[str, Tensor]:
    d = inputs.dynamics
    leaves = {
        name: tensor.detach().clone().requires_grad_()
        for name, tensor in {
            "q": inputs.q, "k": inputs.k, "v": inputs.v, "mu": d.mu, "sigma2": d.sigma2, "eta2": d.eta2,
            "gamma2": d.gamma2, "nu": d.nu, "tau": d.tau,
        }.items()
    }  # fmt: skip
    dynamics = Dynamics(
        leaves["mu"], d.omega, leaves["sigma2"], leaves["eta2"], leaves["gamma2"], leaves["nu"], leaves["tau"]
    )
    result = attention(leaves["q"], leaves["k"], leaves["v"], dynamics, times=inputs.times)
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for tensor in result:
        weight = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        loss = loss + (tensor.double() * weight).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    named = dict(zip(result._fields, result, strict=True))
    return named | {f"grad {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.detach().double() - expected.detach()).norm() / expected.detach().norm())


def assert_matches_reference(attention: Callable[..., AttentionResult], inputs: AttentionInputs) -> None:
    """Outputs, row statistics and every gradient: error against float64 at most twice that of eager code in the same
    dtype.

    Raises:
        AssertionError: names the quantity, its error and what was allowed.
    """
    exact = _outputs_and_gradients(robust_filter_attention, inputs.to(torch.float64))
    eager = _outputs_and_gradients(robust_filter_attention, inputs)
    actual = _outputs_and_gradients(attention, inputs)
    epsilon = torch.finfo(inputs.q.dtype).eps
    for name, expected in exact.items():
        error = _relative_error(actual[name], expected)
        allowed = 2 * _relative_error(eager[name], expected) + epsilon
        if not error <= allowed:
            raise AssertionError(f"{name}: relative error {error:.2e}, allowed {allowed:.2e}")
