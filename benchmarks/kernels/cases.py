"""Random inputs of attention, equal in every dtype and on every device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rfa.model.dynamics import Dynamics, banded_frequencies


class AttentionInputs(NamedTuple):
    """Arguments of `robust_filter_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    dynamics: Dynamics
    times: Tensor | None

    def to(self, dtype: torch.dtype) -> AttentionInputs:
        """Convert to another dtype. Times stay float64, and scalars of the heads have at least float32."""
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
    """Draw random inputs. A seed gives the same numbers in every dtype and on every device.

    Args:
        zero_decay_heads: Number of heads with mu = 0. They are the first ones.
        irregular: Whether times are random, with ties, instead of token indices.
        scale: Standard deviation of q, k and v.
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
    # Summed on the CPU: parallel partial sums on a GPU may decrease by a rounding error across a gap of 0.
    gaps = 2 * torch.rand(batch, length, **draw)
    gaps[:, 1::5] = 0
    return AttentionInputs(q, k, v, dynamics, gaps.cumsum(-1).to(place) if irregular else None).to(dtype)
