"""Gated memory slots on a CPU: the compiled scan of a layer, forward and backward, as a loop for each (batch, head).

The equations are in `slots_reference.py`. All arrays are contiguous float32, tokens `[B, N, H, …]` and state
`[B, H, S, 4D]`. If gradients are needed, the forward pass stores the means after every token (S·4D floats per token and
head), and the backward pass recomputes the K passes. All inputs, the initial state and all parameters have gradients,
which are propagated only from the readout and log_norm.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="call-arg,assignment"

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from rfa.model.recurrence.slots_reference import SlotInputs, SlotLag, SlotOptions, SlotParameters, SlotReadout
from rfa.runtime.compiling import kernel_jit

FASTMATH = ("reassoc", "contract", "arcp", "nsz")
# Columns of the per-head parameter table.
NU, KAPPA, WEIGHT_EXPONENT, RESIDUAL_NOISE, GAMMA2, TAU, DELTA = range(7)


@kernel_jit(allocates=True, fastmath=FASTMATH, parallel=True)
def _forward(  # type: ignore[no-untyped-def]
    q, k, v, pi, qn, decay, table, transport, delay, m_start, p_start, lengths, inner, is_value, keep_history
):
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
        own = b if decay.shape[0] > 1 else 0
        for t in range(lengths[b]):
            moves = decay[own, t if decay.shape[1] > 1 else 0, h]
            qt, kt, vt = q[b, t, h], k[b, t, h], v[b, t, h]
            driving, first = (vt, width) if is_value else (kt, 0)
            seen = np.float32(0.0)
            top = np.float32(-np.inf)
            for s in range(n_slots):
                ms = m[s]
                e = moves[s]
                r = np.float32(0.0)
                for d in range(width):
                    y = driving[d] - e * ms[first + d]
                    r += y * y
                variance = e * e / p[s] + qn[b, t, h, s]
                scale = nu * (variance + noise)
                posterior, g, left = np.float32(0.0), np.float32(0.0), r
                for _ in range(inner):
                    weighted = math.exp(-exponent * math.log1p(left / scale)) * pi[b, t, h, s]
                    posterior = np.float32(1.0) / variance + weighted
                    g = delta * weighted / posterior
                    left = (np.float32(1.0) - g) * (np.float32(1.0) - g) * r
                f = e * (np.float32(1.0) - g)
                lag = transport[h, s]
                rq = np.float32(0.0)
                for d in range(width):
                    x = f * ms[d] + g * kt[d]
                    ms[d] = x
                    y = qt[d] - lag * x
                    rq += y * y
                for d in range(width):
                    ms[width + d] = f * ms[width + d] + g * vt[d]
                p[s] = posterior
                spread = lag * lag / posterior + delay[h, s] + gamma2
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
                a = logits[s] / total * transport[h, s]
                ms = m[s]
                for d in range(width):
                    ot[d] += a * ms[width + d]
            log_norm[b, t, h] = top + math.log(total)
            evidence[b, t, h] = seen
            if keep_history:
                history_m[b, h, t] = m
                history_p[b, h, t] = p
        for t in range(lengths[b], n_tokens):
            out[b, t, h] = 0.0
            log_norm[b, t, h] = 0.0
            evidence[b, t, h] = 0.0
        final_m[b, h] = m
        final_p[b, h] = p
    return out, log_norm, evidence, history_m, history_p, final_m, final_p


@kernel_jit(allocates=True, fastmath=FASTMATH, parallel=True)
def _backward(  # type: ignore[no-untyped-def]
    grad_out, grad_norm, q, k, v, pi, qn, decay, table, transport, delay, m_start, p_start, lengths, inner, is_value,
    history_m, history_p,
):  # fmt: skip
    n_batch, _, n_heads, width = q.shape
    n_slots = pi.shape[3]
    gq, gk, gv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    gpi, gqn = np.zeros_like(pi), np.zeros_like(qn)
    # One sum per stream, and per token if each token has its own decay.
    gdecay = np.zeros((n_batch, decay.shape[1], n_heads, n_slots), np.float64)
    gtransport = np.zeros((n_batch, n_heads, n_slots), np.float64)
    gdelay = np.zeros((n_batch, n_heads, n_slots), np.float64)
    gtable = np.zeros((n_batch, n_heads, 7), np.float64)
    gm = np.zeros_like(m_start)
    gp = np.zeros_like(p_start)
    for bh in numba.prange(n_batch * n_heads):
        b, h = bh // n_heads, bh % n_heads
        logits = np.empty(n_slots, np.float32)
        excesses = np.empty(n_slots, np.float32)
        ga = np.empty(n_slots, np.float32)
        # For each pass: r² at its start, the log of its ratio to the scale, and the gain.
        left = np.empty(inner, np.float32)
        log_ratio = np.empty(inner, np.float32)
        gain = np.empty(inner, np.float32)
        nu, kappa, exponent = table[h, NU], table[h, KAPPA], table[h, WEIGHT_EXPONENT]
        noise, gamma2, tau, delta = table[h, RESIDUAL_NOISE], table[h, GAMMA2], table[h, TAU], table[h, DELTA]
        table_grad = gtable[b, h]
        own = b if decay.shape[0] > 1 else 0
        for step in range(lengths[b]):
            t = lengths[b] - 1 - step
            own_token = t if decay.shape[1] > 1 else 0
            qt, kt, vt, go = q[b, t, h], k[b, t, h], v[b, t, h], grad_out[b, t, h]
            gqt, gkt, gvt = gq[b, t, h], gk[b, t, h], gv[b, t, h]
            top = np.float32(-np.inf)
            for s in range(n_slots):
                ms = history_m[b, h, t, s]
                lag = transport[h, s]
                spread = lag * lag / history_p[b, h, t, s] + delay[h, s] + gamma2
                rq = np.float32(0.0)
                dot = np.float32(0.0)
                for d in range(width):
                    y = qt[d] - lag * ms[d]
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
                mean_ga += a * transport[h, s] * ga[s]
            mean_ga /= total
            for s in range(n_slots):
                gms = gm[b, h, s]
                posterior = history_p[b, h, t, s]
                after = history_m[b, h, t, s]
                before = history_m[b, h, t - 1, s] if t > 0 else m_start[b, h, s]
                before_p = history_p[b, h, t - 1, s] if t > 0 else p_start[b, h, s]
                # readout
                a = math.exp(logits[s] - top) / total
                lag = transport[h, s]
                gl = a * (lag * ga[s] - mean_ga + grad_norm[b, t, h])
                spread = lag * lag / posterior + delay[h, s] + gamma2
                x = excesses[s]
                gx = -gl * tau * kappa / (np.float32(1.0) + x)
                gspread = -(gl * tau + gx * x) / spread
                table_grad[TAU] += gl * logits[s] / tau
                table_grad[KAPPA] -= gl * tau * math.log1p(x)
                table_grad[NU] -= gx * x / nu
                table_grad[GAMMA2] += gspread
                gdelay[b, h, s] += gspread
                glag = a * ga[s] + np.float32(2.0) * gspread * lag / posterior
                gposterior = gp[b, h, s] - gspread * lag * lag / (posterior * posterior)
                grq = np.float32(2.0) * gx / (nu * spread)
                # update
                e = decay[own, own_token, h, s]
                variance = e * e / before_p + qn[b, t, h, s]
                r_key, r_value, gg, moved = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
                for d in range(width):
                    y = qt[d] - lag * after[d]
                    gqt[d] += grq * y
                    gms[d] -= grq * lag * y
                    moved += y * after[d]
                    gms[width + d] += a * lag * go[d]
                    yk, yv = kt[d] - e * before[d], vt[d] - e * before[width + d]
                    r_key += yk * yk
                    r_value += yv * yv
                    gg += gms[d] * yk + gms[width + d] * yv
                gtransport[b, h, s] += glag - grq * moved
                r = r_value if is_value else r_key
                # the K passes, and back through them
                scale = nu * (variance + noise)
                g, rest = np.float32(0.0), r
                for i in range(inner):
                    left[i] = rest
                    log_ratio[i] = math.log1p(rest / scale)
                    weighted = math.exp(-exponent * log_ratio[i]) * pi[b, t, h, s]
                    g = delta * weighted / (np.float32(1.0) / variance + weighted)
                    gain[i] = g
                    rest = (np.float32(1.0) - g) * (np.float32(1.0) - g) * r
                gpi_sum, gr, gscale, gprior = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
                for back in range(inner):
                    i = inner - 1 - back
                    w = math.exp(-exponent * log_ratio[i])
                    weighted = w * pi[b, t, h, s]
                    found = np.float32(1.0) / variance + weighted
                    table_grad[DELTA] += gg * weighted / found
                    gposterior -= gg * gain[i] / found
                    gweighted = gg * delta / found + gposterior
                    gpi_sum += gweighted * w
                    gw = gweighted * pi[b, t, h, s]
                    table_grad[WEIGHT_EXPONENT] -= gw * w * log_ratio[i]
                    gleft = -exponent * w * gw / (scale + left[i])
                    gscale -= gleft * left[i] / scale
                    gprior += gposterior
                    if i == 0:
                        gr += gleft
                    else:  # left[i] = (1 - gain[i - 1])² r
                        keep = np.float32(1.0) - gain[i - 1]
                        gr += gleft * keep * keep
                        gg = np.float32(-2.0) * gleft * keep * r
                        gposterior = np.float32(0.0)
                gpi[b, t, h, s] = gpi_sum
                gr *= np.float32(2.0)
                gr_key, gr_value = (np.float32(0.0), gr) if is_value else (gr, np.float32(0.0))
                table_grad[NU] += gscale * (variance + noise)
                table_grad[RESIDUAL_NOISE] += gscale * nu
                gvariance = gscale * nu - gprior / (variance * variance)
                gqn[b, t, h, s] = gvariance
                ge = gvariance * np.float32(2.0) * e / before_p
                gp[b, h, s] = -gvariance * e * e / (before_p * before_p)
                keep = np.float32(1.0) - g
                for d in range(width):
                    yk, yv = kt[d] - e * before[d], vt[d] - e * before[width + d]
                    gkt[d] += g * gms[d] + gr_key * yk
                    gvt[d] += g * gms[width + d] + gr_value * yv
                    gpred = keep * gms[d] - gr_key * yk
                    gpred_v = keep * gms[width + d] - gr_value * yv
                    ge += gpred * before[d] + gpred_v * before[width + d]
                    gms[d] = e * gpred
                    gms[width + d] = e * gpred_v
                gdecay[b, own_token, h, s] += ge
    return gq, gk, gv, gpi, gqn, gdecay, gtable, gtransport, gdelay, gm, gp


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().contiguous().numpy()


class _SlotScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inner: int, is_value: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        arrays = [_array(tensor) for tensor in tensors]
        # Gradients are disabled in `forward`, but `needs_input_grad` contains whether they may be requested.
        keep_history = any(ctx.needs_input_grad)
        out, log_norm, evidence, history_m, history_p, final_m, final_p = _forward(
            *arrays, inner, is_value, keep_history
        )
        ctx.arrays = (*arrays, inner, is_value, history_m, history_p)
        results = [torch.from_numpy(array) for array in (out, log_norm, evidence, final_m, final_p)]
        ctx.mark_non_differentiable(*results[2:])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_norm: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gradients = _backward(_array(grad_out), _array(grad_norm), *ctx.arrays)
        tokens, decay, sums, state = gradients[:5], gradients[5], gradients[6:9], gradients[9:]
        if len(ctx.arrays[5]) < len(decay):
            decay = decay.sum(0, keepdims=True)
        summed = (array.sum(0).astype(np.float32) for array in sums)
        arrays = (*tokens, decay.astype(np.float32), *summed, *state)
        return None, None, *(torch.from_numpy(array) for array in arrays), None


def slot_scan_numba(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters, options: SlotOptions
) -> tuple[SlotReadout, Tensor, Tensor]:
    """Compute `slot_scan_reference` for float32 tensors on a CPU. Gradients are propagated only from `out` and
    `log_norm`."""
    n_threads = min(torch.get_num_threads(), int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    numba.set_num_threads(n_threads)
    decay, *scalars = parameters
    no_lag = SlotLag(decay.new_ones(decay.shape[-2:]), decay.new_zeros(decay.shape[-2:]))
    out, log_norm, precision, means, precisions = _SlotScan.apply(
        options.inner,
        options.innovation == "value",
        *tokens,
        decay if decay.dim() > 2 else decay[None, None],
        torch.stack(scalars, dim=-1),
        *(no_lag if options.lag is None else options.lag),
        means.contiguous(),
        precisions.contiguous(),
        torch.full(means.shape[:1], tokens.k.shape[1]) if options.lengths is None else options.lengths.long(),
    )
    return SlotReadout(out, log_norm, precision), means, precisions
