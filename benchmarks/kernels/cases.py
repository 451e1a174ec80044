"""Input factories for every faster path of attention, and the comparison with the eager code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rfa.benchmarks.kernels.rounding import assert_within_rounding, relative_error
from rfa.model.attention.api import robust_filter_attention, token_positions
from rfa.model.attention.reference import AttentionResult
from rfa.model.dynamics import Dynamics, banded_frequencies, rotate, wrapped_phase

_reference = partial(robust_filter_attention, impl="reference")


class AttentionInputs(NamedTuple):
    """Arguments of `robust_filter_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    dynamics: Dynamics
    times: Tensor | None

    def to(self, dtype: torch.dtype) -> AttentionInputs:
        """The same values in another dtype; times stay float64, and scalars of the heads are no less than float32."""
        q, k, v = (x.to(dtype) for x in self[:3])
        return AttentionInputs(q, k, v, self.dynamics.to(torch.promote_types(dtype, torch.float32)), self.times)


def rfa_inputs(
    batch: int,
    length: int,
    heads: int,
    complex_dims: int,
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    seed: int = 0,
    zero_decay_heads: int = 1,
    irregular: bool = False,
    scale: float = 1.0,
) -> AttentionInputs:
    """Random inputs, the same in every dtype and on every device.

    Args:
        device: None is torch's default.
        zero_decay_heads: so many heads, the first ones, have mu = 0.
        irregular: draw times, with ties; otherwise None, the token indices.
        scale: standard deviation of every real of q, k, v.
    """
    generator = torch.Generator("cpu").manual_seed(seed)

    place = torch.get_default_device() if device is None else device
    draw: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": "cpu"}

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, **draw).to(place)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*(shape or (heads,)), **draw).to(place)

    q, k, v = (scale * normal(batch, length, heads, 2 * complex_dims) for _ in range(3))
    mu = uniform(0.01, 0.3)
    mu[:zero_decay_heads] = 0
    dynamics = Dynamics(
        mu=mu,
        omega=normal(heads, complex_dims) if complex_dims % 2 else banded_frequencies(heads, complex_dims).to(place),
        sigma2=uniform(0.05, 0.5),
        eta2=uniform(0.2, 2),
        gamma2=uniform(0.1, 1),
        nu=uniform(3, 4 * complex_dims + 3),
        tau=uniform(0.5, 2),
    )
    # Summed on the CPU: a GPU takes partial sums in parallel, which may fall by a rounding where a gap is 0.
    gaps = 2 * torch.rand(batch, length, **draw)
    gaps[:, 1::5] = 0
    return AttentionInputs(q, k, v, dynamics, gaps.cumsum(-1).to(place) if irregular else None).to(dtype)


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
    """The eager code in the precision of q.

    A faster path keeps 16 bits of what it reads and writes, in the rotating frame: so does its eager twin.
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
    """Outputs, row statistics and every gradient of a faster path, in the dtype of `inputs`.

    The error against float64 may be what rounding explains (`rfa.benchmarks.kernels.rounding`).

    Args:
        attention: called as `robust_filter_attention(q, k, v, dynamics, times=..., kernel=...)`, with cu_seqlens too
            where there are any.

    Raises:
        AssertionError: names the quantity, its error and what was allowed.
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
