"""Compares a faster implementation of attention with the eager code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rfa.benchmarks.kernels.cases import AttentionInputs
from rfa.model.attention.api import robust_filter_attention, token_positions
from rfa.model.attention.reference import AttentionResult
from rfa.model.dynamics import Dynamics, rotate, wrapped_phase
from tests.rounding import assert_within_rounding, relative_error

_reference = partial(robust_filter_attention, impl="reference")


def _outputs_and_gradients(
    attention: Callable[..., AttentionResult], inputs: AttentionInputs, options: dict[str, Any]
) -> dict[str, Tensor]:
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
    result = attention(leaves["q"], leaves["k"], leaves["v"], dynamics, times=inputs.times, **options)
    generator = torch.Generator("cpu").manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64, device="cpu").to(x) for x in result]
    gradients = torch.autograd.grad(list(result), list(leaves.values()), weights)
    named = dict(zip(result._fields, result, strict=True))
    return named | {f"grad {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}


def _eager(
    q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics, *, times: Tensor | None, **options: Any
) -> AttentionResult:
    """Run the eager code in the precision of q.

    A faster implementation keeps 16 bits of its inputs and outputs in the rotating frame, so this does too.
    """
    if q.dtype not in (torch.float16, torch.bfloat16):
        return _reference(q, k, v, dynamics, times=times, **options)
    positions = token_positions(q.shape[1], options.get("cu_seqlens"), q.device) if times is None else times
    phase = wrapped_phase(dynamics.omega, positions, torch.float32)

    def kept(x: Tensor) -> Tensor:
        return rotate(rotate(x.float(), -phase).to(q.dtype).float(), phase)

    result = _reference(kept(q), kept(k), kept(v), dynamics, times=times, **options)
    return result._replace(out=kept(result.out).to(q.dtype))


def assert_matches_reference(
    attention: Callable[..., AttentionResult],
    inputs: AttentionInputs,
    *,
    kernel: str = "student_t",
    cu_seqlens: Tensor | None = None,
) -> None:
    """Check outputs, row statistics and gradients of a faster implementation, in the dtype of `inputs`.

    The error against float64 may be that of rounding (`tests.rounding`).

    Args:
        attention: Called as `robust_filter_attention(q, k, v, dynamics, times=..., kernel=...)`, with cu_seqlens if
            given.

    Raises:
        AssertionError: An error is too large. The message names the quantity, its error and the allowed error.
    """
    options: dict[str, Any] = {"kernel": kernel} | ({} if cu_seqlens is None else {"cu_seqlens": cu_seqlens})
    exact = _outputs_and_gradients(_reference, inputs.to(torch.float64), options)
    actual = _outputs_and_gradients(attention, inputs, options)
    for name, expected in exact.items():
        if actual[name].shape != expected.shape:
            raise AssertionError(f"{name}: shape {list(actual[name].shape)}, expected {list(expected.shape)}")

    def errors(results: dict[str, Tensor]) -> dict[str, float]:
        return {name: relative_error(results[name], expected) for name, expected in exact.items()}

    assert_within_rounding(
        errors(actual), lambda: errors(_outputs_and_gradients(_eager, inputs, options)), inputs.q.dtype
    )
