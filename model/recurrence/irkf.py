"""Filter with the IRKF, with one memory slot per head. `irkf_scan` filters sequences and `irkf_step` single tokens, and
both give the same results.

The equations are in `irkf_reference.py`. A sequence may be filtered at once, in segments or token by token. The rows of
a batch are independent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rfa.model.dynamics import Dynamics
from rfa.model.recurrence.irkf_reference import UPDATES, IRKFState, Rule, irkf_loop

__all__ = ["IRKFState", "Rule", "initial_state", "irkf_scan", "irkf_step"]


def initial_state(batch: int, dynamics: Dynamics, dtype: torch.dtype = torch.float32) -> IRKFState:
    """Return the state before the first token, with precision 0."""
    width = 2 * dynamics.complex_dims
    device = dynamics.omega.device
    return IRKFState(
        mean=torch.zeros(batch, dynamics.n_heads, width, dtype=dtype, device=device),
        precision=torch.zeros(batch, dynamics.n_heads, dtype=dtype, device=device),
        time=torch.zeros(batch, dtype=torch.float64, device=device),
    )


def _check(v: Tensor, dynamics: Dynamics, inner: int, rule: str) -> None:
    if v.dim() != 4 or v.shape[2:] != (dynamics.n_heads, 2 * dynamics.complex_dims):
        raise ValueError(
            f"v must have shape [B, N, H, 2D] with H = {dynamics.n_heads} and 2D = {2 * dynamics.complex_dims}, "
            f"got {list(v.shape)}"
        )
    if v.shape[1] == 0:
        raise ValueError("v must contain at least one token, got N = 0")
    if inner < 1:
        raise ValueError(f"inner must be >= 1, got {inner}")
    if rule not in UPDATES:
        raise ValueError(f"rule must be one of {sorted(UPDATES)}, got {rule!r}")


def _elapsed(times: Tensor | None, state: IRKFState, v: Tensor, is_continued: bool) -> Tensor:
    """Return the time of every token since the initial state, or since the first token if there is no initial state,
    `[B, N]` float64."""
    batch, n_tokens = v.shape[:2]
    if times is None:
        steps = torch.arange(n_tokens, dtype=torch.float64, device=v.device)
        times = steps + state.time[:, None] + (1.0 if is_continued else 0.0)
    times = times.to(torch.float64).expand(batch, n_tokens)
    origin = state.time[:, None] if is_continued else times[:, :1]
    elapsed = times - origin
    if not bool(torch.isfinite(elapsed).all()):
        raise ValueError("times must be finite, but contain NaN or infinity")
    if bool((elapsed[:, :1] < 0).any() or (torch.diff(elapsed, dim=1) < 0).any()):
        raise ValueError("times must be non-decreasing, and must not be before the time of the initial state")
    return elapsed


def irkf_scan(
    v: Tensor,
    dynamics: Dynamics,
    *,
    times: Tensor | None = None,
    inner: int = 1,
    rule: Rule = "capped",
    mask: Tensor | None = None,
    state: IRKFState | None = None,
    delta: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor, IRKFState]:
    """Filter measurements with one isotropic robust filter per head.

    Args:
        v: Measurements `[B, N, H, 2D]`, real parts first, float32 or float64.
        dynamics: Dynamics of the heads. `nu = inf` is the Kalman filter; tau is ignored.
        times: Times `[N]` or `[B, N]`, non-decreasing. By default, they are steps of 1 after the initial state.
        inner: Number of reweighting passes K.
        rule: Weight rule, "capped" or "paper".
        mask: Presence of the measurements, `[N]` or `[B, N]` bool. Missing measurements may be NaN.
        state: State that an earlier call returned.
        delta: Damping of the mean, a number in (0, 1] or a tensor `[H]`.

    Returns:
        means `[B, N, H, 2D]`, precisions `[B, N, H]` (inverse variance per complex dimension), and the state after the
        last token.

    Raises:
        ValueError: If a shape, a time or the rule is invalid.
    """
    _check(v, dynamics, inner, rule)
    is_continued = state is not None
    carried = initial_state(v.shape[0], dynamics, v.dtype) if state is None else state
    elapsed = _elapsed(times, carried, v, is_continued)
    seen = torch.ones(v.shape[:2], dtype=torch.bool, device=v.device) if mask is None else mask.expand(v.shape[:2])
    means, precisions = irkf_loop(
        torch.where(seen[:, :, None, None], v, torch.zeros_like(v)),
        elapsed,
        seen,
        carried.mean,
        carried.precision,
        # The dtype of omega is not changed, because the phase is computed in float64.
        Dynamics(**{**vars(dynamics.to(v.dtype)), "omega": dynamics.omega}),
        inner=inner,
        rule=rule,
        delta=torch.as_tensor(delta, dtype=v.dtype, device=v.device),
    )
    start = carried.time if is_continued or times is None else times.to(torch.float64).expand(v.shape[:2])[:, 0]
    return means, precisions, IRKFState(means[:, -1], precisions[:, -1], start + elapsed[:, -1])


def irkf_step(
    v_t: Tensor,
    state: IRKFState,
    dynamics: Dynamics,
    dt: float | Tensor,
    *,
    inner: int = 1,
    rule: Rule = "capped",
    mask: Tensor | None = None,
    delta: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor, IRKFState]:
    """Filter one token.

    Args:
        v_t: Measurement, `[B, H, 2D]`.
        state: State before the token.
        dynamics, inner, rule, delta: See `irkf_scan`.
        dt: Time since the state, a number or `[B]`, >= 0.
        mask: Presence of the measurement, `[B]` bool.

    Returns:
        mean `[B, H, 2D]`, precision `[B, H]` and the state after the token.
    """
    lag = torch.as_tensor(dt, dtype=torch.float64, device=v_t.device).expand(v_t.shape[0])
    means, precisions, state = irkf_scan(
        v_t[:, None],
        dynamics,
        times=(state.time + lag)[:, None],
        inner=inner,
        rule=rule,
        mask=None if mask is None else mask[:, None],
        state=state,
        delta=delta,
    )
    return means[:, 0], precisions[:, 0], state
