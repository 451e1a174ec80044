"""The far field of a decaying head in closed form, for token numbers as times; for both passes.

A lag is far if, with an allowed error eps and beta = gamma2 + sigma2 / (2 mu) the limit of V,

    E <= eps    and    |V - beta| = |eta2 - sigma2 / (2 mu)| E² <= eps beta

There E counts as 0 and V as beta. Every far key then has the same logit for a query, no value and no gradient:

    U = beta + |q|² / nu    L = tau ((kappa - 1) log beta - kappa log U)        w P = 1 / U              Student-t
                            L = -tau (log beta + |q|² / (nu beta))    w P = e^{-|q|² / (nu beta)} / beta    Gaussian

A kernel leaves out blocks of keys that are far from all its queries, and adds their number of keys times these terms.
Its time then depends on the horizon, not on the length. Far pairs in other blocks are computed exactly, so results with
different blocks differ within the error.

Error to first order in eps: of a logit and log_norm, tau eps (2 kappa - 1 + kappa |k| / sqrt(nu beta)); of out, that
times the largest |v|, and eps |v| for the values left out. Keys with |k| >> sqrt(nu beta) / eps need a smaller eps.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

# Horizon of a head without a far field: longer than every sequence, with room below the largest int32.
NEVER = 2**30


def far_horizons(heads: Tensor, far_field: float) -> Tensor:
    """First far lag of every head of `heads` `[H, 6]` for an error of `far_field`; `[H]` int32, no gradient."""
    mu, sigma2, eta2, gamma2 = heads.detach().to(torch.float64)[:, :4].unbind(-1)
    steady = sigma2 / (2 * mu)
    limit = gamma2 + steady
    by_variance = 0.5 * torch.log((eta2 - steady).abs() / (far_field * limit))
    horizon = torch.ceil(by_variance.clamp_min(-math.log(far_field)) / mu)
    # Without decay, or if V falls to 0, it is infinite or NaN.
    return torch.where(horizon < NEVER, horizon, NEVER).to(torch.int32)


@triton.jit
def n_far_blocks(p_horizons, i_head, position, BN: tl.constexpr):
    """Number of first blocks of keys that are far from every query at `position` or later.

    Loaded anew at each call to save a register.
    """
    return tl.maximum(position + 1 - tl.load(p_horizons + i_head, volatile=True), 0) // BN
