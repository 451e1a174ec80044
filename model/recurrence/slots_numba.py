"""Gated filter slots on a CPU: the whole scan of a layer, forward and backward, in one compiled loop per (batch, head).

Equations: `slots_reference.py` with K = 1. Layout: contiguous float32, tokens `[B, N, H, …]`, state `[B, H, S, 4D]`.
The forward pass keeps the means of every token for the backward pass (S·4D floats per token and head) when gradients
are wanted, nothing otherwise. Gradients reach all inputs, the initial state and all parameters; not through the final
state.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="call-arg,assignment"

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from model.recurrence.slots_reference import SlotInputs, SlotParameters, SlotReadout

# Columns of the per-head parameter table.
NU, KAPPA, WEIGHT_EXPONENT, RESIDUAL_NOISE, GAMMA2, TAU, DELTA = range(7)


@numba.njit(parallel=True, fastmath={"reassoc", "contract", "arcp", "nsz"}, cache=True)
def _forward(q, k, v, pi, qn, decay, table, m_start, p_start, keep_history):  # type: ignore[no-untyped-def]
    n_batch, n_tokens, n_heads, width = q.shape
    n_slots = pi.shape[3]
    out = np.empty((n_batch, n_tokens, n_heads, width), np.float32)
    log_norm = np.empty((n_batch, n_tokens, n_heads), np.float32)
    evidence = np.empty((n_batch, n_tokens, n_heads), np.float32)
    kept = n_tokens if keep_history else 0
    history_m = np.empty((n_batch, n_heads, kept, n_slots, 2 * width), np.float32)
    history_p = np.empty((n_batch, n_heads, kept, n_slots), np.float32)
    final_m = np.empty((n_batch, n_heads, n_slots, 2 * width), np.float32)
    final_p = np.empty((n_batch, n_heads, n_slots), np.float32)
    for bh in numba.prange(n_batch * n_heads):
        b, h = bh // n_heads, bh % n_heads
        m = m_start[b, h].copy()
        p = p_start[b, h].copy()
        logits = np.empty(n_slots, np.float32)
        nu, kappa, exponent = table[h, NU], table[h, KAPPA], table[h, WEIGHT_EXPONENT]
        noise, gamma2, tau, delta = table[h, RESIDUAL_NOISE], table[h, GAMMA2], table[h, TAU], table[h, DELTA]
        for t in range(n_tokens):
            qt, kt, vt = q[b, t, h], k[b, t, h], v[b, t, h]
            seen = np.float32(0.0)
            top = np.float32(-np.inf)
            for s in range(n_slots):
                ms = m[s]
                e = decay[h, s]
                r = np.float32(0.0)
                for d in range(width):
                    y = kt[d] - e * ms[d]
                    r += y * y
                variance = e * e / p[s] + qn[b, t, h, s]
                weighted = math.exp(-exponent * math.log1p(r / (nu * (variance + noise)))) * pi[b, t, h, s]
                posterior = np.float32(1.0) / variance + weighted
                g = delta * weighted / posterior
                f = e * (np.float32(1.0) - g)
                rq = np.float32(0.0)
                for d in range(width):
                    x = f * ms[d] + g * kt[d]
                    ms[d] = x
                    y = qt[d] - x
                    rq += y * y
                for d in range(width):
                    ms[width + d] = f * ms[width + d] + g * vt[d]
                p[s] = posterior
                spread = np.float32(1.0) / posterior + gamma2
                excess = rq / (nu * spread)
                logits[s] = tau * (-math.log(spread) - kappa * math.log1p(excess))
                seen += np.float32(1.0) / ((np.float32(1.0) + excess) * spread)
                top = max(top, logits[s])
            total = np.float32(0.0)
            for s in range(n_slots):
                logits[s] = math.exp(logits[s] - top)
                total += logits[s]
            ot = out[b, t, h]
            ot[:] = 0.0
            for s in range(n_slots):
                a = logits[s] / total
                ms = m[s]
                for d in range(width):
                    ot[d] += a * ms[width + d]
            log_norm[b, t, h] = top + math.log(total)
            evidence[b, t, h] = seen
            if keep_history:
                history_m[b, h, t] = m
                history_p[b, h, t] = p
        final_m[b, h] = m
        final_p[b, h] = p
    return out, log_norm, evidence, history_m, history_p, final_m, final_p


@numba.njit(parallel=True, fastmath={"reassoc", "contract", "arcp", "nsz"}, cache=True)
def _backward(grad_out, q, k, v, pi, qn, decay, table, m_start, p_start, history_m, history_p):  # type: ignore[no-untyped-def]
    n_batch, n_tokens, n_heads, width = q.shape
    n_slots = pi.shape[3]
    gq, gk, gv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    gpi, gqn = np.empty_like(pi), np.empty_like(qn)
    gdecay = np.zeros((n_batch, n_heads, n_slots), np.float64)
    gtable = np.zeros((n_batch, n_heads, 7), np.float64)
    gm = np.zeros_like(m_start)
    gp = np.zeros_like(p_start)
    for bh in numba.prange(n_batch * n_heads):
        b, h = bh // n_heads, bh % n_heads
        logits = np.empty(n_slots, np.float32)
        excesses = np.empty(n_slots, np.float32)
        ga = np.empty(n_slots, np.float32)
        nu, kappa, exponent = table[h, NU], table[h, KAPPA], table[h, WEIGHT_EXPONENT]
        noise, gamma2, tau, delta = table[h, RESIDUAL_NOISE], table[h, GAMMA2], table[h, TAU], table[h, DELTA]
        table_grad = gtable[b, h]
        for step in range(n_tokens):
            t = n_tokens - 1 - step
            qt, kt, vt, go = q[b, t, h], k[b, t, h], v[b, t, h], grad_out[b, t, h]
            gqt, gkt, gvt = gq[b, t, h], gk[b, t, h], gv[b, t, h]
            top = np.float32(-np.inf)
            for s in range(n_slots):
                ms = history_m[b, h, t, s]
                spread = np.float32(1.0) / history_p[b, h, t, s] + gamma2
                rq = np.float32(0.0)
                dot = np.float32(0.0)
                for d in range(width):
                    y = qt[d] - ms[d]
                    rq += y * y
                    dot += go[d] * ms[width + d]
                excesses[s] = rq / (nu * spread)
                logits[s] = tau * (-math.log(spread) - kappa * math.log1p(excesses[s]))
                ga[s] = dot
                top = max(top, logits[s])
            total = np.float32(0.0)
            mean_ga = np.float32(0.0)
            for s in range(n_slots):
                a = math.exp(logits[s] - top)
                total += a
                mean_ga += a * ga[s]
            mean_ga /= total
            for s in range(n_slots):
                gms = gm[b, h, s]
                posterior = history_p[b, h, t, s]
                after = history_m[b, h, t, s]
                before = history_m[b, h, t - 1, s] if t > 0 else m_start[b, h, s]
                before_p = history_p[b, h, t - 1, s] if t > 0 else p_start[b, h, s]
                # read-out
                a = math.exp(logits[s] - top) / total
                gl = a * (ga[s] - mean_ga)
                spread = np.float32(1.0) / posterior + gamma2
                x = excesses[s]
                gx = -gl * tau * kappa / (np.float32(1.0) + x)
                gspread = -(gl * tau + gx * x) / spread
                table_grad[TAU] += gl * logits[s] / tau
                table_grad[KAPPA] -= gl * tau * math.log1p(x)
                table_grad[NU] -= gx * x / nu
                table_grad[GAMMA2] += gspread
                gposterior = gp[b, h, s] - gspread / (posterior * posterior)
                grq = np.float32(2.0) * gx / (nu * spread)
                # update
                e = decay[h, s]
                variance = e * e / before_p + qn[b, t, h, s]
                r = np.float32(0.0)
                gg = np.float32(0.0)
                for d in range(width):
                    y = qt[d] - after[d]
                    gqt[d] += grq * y
                    gms[d] -= grq * y
                    gms[width + d] += a * go[d]
                    yk = kt[d] - e * before[d]
                    r += yk * yk
                    gg += gms[d] * yk + gms[width + d] * (vt[d] - e * before[width + d])
                scale = nu * (variance + noise)
                log_u = math.log1p(r / scale)
                w = math.exp(-exponent * log_u)
                weighted = w * pi[b, t, h, s]
                g = delta * weighted / posterior
                table_grad[DELTA] += gg * weighted / posterior
                gposterior -= gg * g / posterior
                gweighted = gg * delta / posterior + gposterior
                gpi[b, t, h, s] = gweighted * w
                gw = gweighted * pi[b, t, h, s]
                table_grad[WEIGHT_EXPONENT] -= gw * w * log_u
                gu = -exponent * w * gw / (np.float32(1.0) + r / scale)
                gr = np.float32(2.0) * gu / scale
                gscale = -gu * r / (scale * scale)
                table_grad[NU] += gscale * (variance + noise)
                table_grad[RESIDUAL_NOISE] += gscale * nu
                gvariance = gscale * nu - gposterior / (variance * variance)
                gqn[b, t, h, s] = gvariance
                ge = gvariance * np.float32(2.0) * e / before_p
                gp[b, h, s] = -gvariance * e * e / (before_p * before_p)
                keep = np.float32(1.0) - g
                for d in range(width):
                    yk = kt[d] - e * before[d]
                    gkt[d] += g * gms[d] + gr * yk
                    gvt[d] += g * gms[width + d]
                    gpred = keep * gms[d] - gr * yk
                    gpred_v = keep * gms[width + d]
                    ge += gpred * before[d] + gpred_v * before[width + d]
                    gms[d] = e * gpred
                    gms[width + d] = e * gpred_v
                gdecay[b, h, s] += ge
    return gq, gk, gv, gpi, gqn, gdecay, gtable, gm, gp


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().contiguous().numpy()


class _SlotScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        arrays = [_array(tensor) for tensor in tensors]
        # Grad mode is off inside forward; needs_input_grad says whether anyone will ask.
        keep_history = any(ctx.needs_input_grad)
        out, log_norm, evidence, history_m, history_p, final_m, final_p = _forward(*arrays, keep_history)
        ctx.arrays = (*arrays, history_m, history_p)
        results = [torch.from_numpy(array) for array in (out, log_norm, evidence, final_m, final_p)]
        ctx.mark_non_differentiable(*results[1:])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *_: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        gq, gk, gv, gpi, gqn, gdecay, gtable, gm, gp = _backward(_array(grad_out), *ctx.arrays)
        summed = gdecay.sum(0).astype(np.float32), gtable.sum(0).astype(np.float32)
        return tuple(torch.from_numpy(array) for array in (gq, gk, gv, gpi, gqn, *summed, gm, gp))


def slot_scan_numba(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters
) -> tuple[SlotReadout, Tensor, Tensor]:
    """`slot_scan_reference` with K = 1 for float32 tensors on a CPU. Only `out` carries gradients."""
    n_threads = min(torch.get_num_threads(), int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    numba.set_num_threads(n_threads)
    table = torch.stack(
        [
            parameters.nu,
            parameters.kappa,
            parameters.weight_exponent,
            parameters.residual_noise,
            parameters.gamma2,
            parameters.tau,
            parameters.delta,
        ],
        dim=-1,
    )
    out, log_norm, precision, means, precisions = _SlotScan.apply(
        *tokens, parameters.decay, table, means.contiguous(), precisions.contiguous()
    )
    return SlotReadout(out, log_norm, precision), means, precisions
