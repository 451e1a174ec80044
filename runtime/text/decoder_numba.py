"""CPU kernels of the recurrent decoder: RMSNorm, GELU, and the memory slots of a layer.

The equations are in `layers.py` and `recurrence/slots_reference.py`. All numbers are float32. Rows `[B · N, …]` contain
the tokens of a stream one after another. The slots of R streams have means `[R, L, H, S, 4D]` and precisions
`[R, L, H, S]`.

Each loop runs over the numbers of one row, and products (`product_numba`) sum each row separately. The bits of a row
therefore depend neither on the other rows of a batch nor on the pieces in which a prompt is read. NaN and infinity are
propagated, and `finite` reports them.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

from rfa.runtime.compiling import kernel_jit, run_with_locks
from rfa.runtime.text import math_numba, product_numba
from rfa.runtime.text.math_numba import HALF, ONE, ZERO, clamp, erf, exp, log
from rfa.runtime.uncertainty import copy_arrays
from rfa.runtime.uncertainty.copy_arrays import copy1, copy2

# Columns of the per-head parameter table, in the order of `HEAD_CONSTANTS`.
NU, KAPPA, WEIGHT_EXPONENT, RESIDUAL_NOISE, GAMMA2, TAU, DELTA, ETA2 = range(8)
HEAD_CONSTANTS = ("nu", "kappa", "weight_exponent", "residual_noise", "gamma2", "tau", "delta", "eta2")
SCALARS = ("gate_lowest", "gate_highest", "process_gate_scale", "norm_eps")
LARGEST = np.finfo(np.float32).max
SQRT_HALF = np.float32(math.sqrt(0.5))

_kernel_jit = kernel_jit(copy_arrays, math_numba, allocates=True, fastmath={"reassoc", "contract", "arcp", "nsz"})


@_kernel_jit
def gelu(x):
    """Compute x Φ(x) in place for x `[n, d]`."""
    for i in range(x.shape[0]):
        row = x[i]
        for d in range(row.size):
            value = row[d]
            row[d] = HALF * value * (ONE + erf(value * SQRT_HALF))


@_kernel_jit
def normed(x, weight, eps, out):
    """Compute the RMSNorm of rows `[n, d]`."""
    for i in range(x.shape[0]):
        row, place = x[i], out[i]
        total = ZERO
        for d in range(row.size):
            total += row[d] * row[d]
        scale = ONE / math.sqrt(total / np.float32(row.size) + eps)
        for d in range(row.size):
            place[d] = row[d] * scale * weight[d]


@_kernel_jit
def add_normed(x, y, weight, eps, out):
    """Add y to x, and then compute the RMSNorm of x."""
    for i in range(x.shape[0]):
        row, more = x[i], y[i]
        for d in range(row.size):
            row[d] += more[d]
    normed(x, weight, eps, out)


@_kernel_jit
def run_slots(
    joint, n_tokens, cos, sin, gate_bias, scalars, table, decay, own_process, lags, layer, means, precisions, sources,
    targets, passes, latent, evidence, finite,
):  # fmt: skip
    """Run the mixer of a layer between its products: rotate into the frame, update and read the slots, and rotate back.

    Args:
        joint: Query, key, value and gates, `[B · N, 3 · H · 2D + 2 · H · S …]`. Overwritten.
        cos, sin: Rotation of each token, `[B · N, H, D]`.
        decay, own_process: Decay and process noise for each lag, `[T, H, S]`.
        lags: Index of the lag before each token, `[B · N]`.
        sources, targets: Rows of means and precisions from which slots are read and to which they are written, `[B]`.
            All rows must differ.
        passes: Number of reweighting passes K >= 1 of each stream, `[B]`.
        latent, evidence: Outputs, `[B · N, H · 2D]` and `[B · N, H]`.
        finite: Output, `[B]`. Set to false where a new slot is not finite.
    """
    _, n_heads, n_slots = decay.shape
    half = cos.shape[2]
    width = 2 * half
    first_gate = 3 * n_heads * width
    n_gates = 2 * n_heads * n_slots
    lowest, highest, process_scale = scalars[0], scalars[1], scalars[2]
    vectors = np.empty((3, width), np.float32)
    read = np.empty(width, np.float32)
    # Each loop over slots writes one array and reads few arrays, so that the compiler can prove that they do not alias.
    residual = np.empty(n_slots, np.float32)
    variance = np.empty(n_slots, np.float32)
    weighted = np.empty(n_slots, np.float32)
    gain = np.empty(n_slots, np.float32)
    for i in range(cos.shape[0]):
        gates = joint[i, first_gate:]
        for j in range(n_gates):
            gates[j] = exp(clamp(gates[j] + gate_bias[j], lowest, highest))
    for b in range(sources.size):
        for h in range(n_heads):
            m, p = means[targets[b], layer, h], precisions[targets[b], layer, h]
            copy2(means[sources[b], layer, h], m)
            copy1(precisions[sources[b], layer, h], p)
            nu, kappa, exponent, noise = (
                table[h, NU],
                table[h, KAPPA],
                table[h, WEIGHT_EXPONENT],
                table[h, RESIDUAL_NOISE],
            )
            gamma2, tau, delta, eta2 = table[h, GAMMA2], table[h, TAU], table[h, DELTA], table[h, ETA2]
            for i in range(b * n_tokens, (b + 1) * n_tokens):
                e, own = decay[lags[i], h], own_process[lags[i], h]
                c, s = cos[i, h], sin[i, h]
                for part in range(3):
                    x, y = joint[i, (part * n_heads + h) * width :], vectors[part]
                    for d in range(half):
                        y[d] = x[d] * c[d] + x[half + d] * s[d]
                    for d in range(half):
                        y[half + d] = x[half + d] * c[d] - x[d] * s[d]
                q, k, v = vectors[0], vectors[1], vectors[2]
                write = joint[i, first_gate + h * n_slots :]
                forget = joint[i, first_gate + (n_heads + h) * n_slots :]
                for j in range(n_slots):
                    mean, total = m[j], ZERO
                    for d in range(width):
                        away = k[d] - e[j] * mean[d]
                        total += away * away
                    residual[j] = total
                for j in range(n_slots):
                    variance[j] = e[j] * e[j] / p[j] + (own[j] + process_scale * forget[j])
                for j in range(n_slots):
                    excess = residual[j] / (nu * (variance[j] + noise))
                    weighted[j] = exp(-exponent * log(ONE + excess)) * write[j] / eta2
                for j in range(n_slots):
                    p[j] = ONE / variance[j] + weighted[j]
                for j in range(n_slots):
                    gain[j] = delta * weighted[j] / p[j]
                for _ in range(1, passes[b]):
                    # The mean moves along its innovation, so a pass changes only the length of the residual.
                    for j in range(n_slots):
                        left = ONE - gain[j]
                        excess = left * left * residual[j] / (nu * (variance[j] + noise))
                        weighted[j] = exp(-exponent * log(ONE + excess)) * write[j] / eta2
                    for j in range(n_slots):
                        p[j] = ONE / variance[j] + weighted[j]
                    for j in range(n_slots):
                        gain[j] = delta * weighted[j] / p[j]
                for j in range(n_slots):
                    mean, g = m[j], gain[j]
                    keep = e[j] * (ONE - g)
                    total = ZERO
                    for d in range(width):
                        value = keep * mean[d] + g * k[d]
                        mean[d] = value
                        away = q[d] - value
                        total += away * away
                    residual[j] = total
                    for d in range(width):
                        mean[width + d] = keep * mean[width + d] + g * v[d]
                seen = ZERO
                for j in range(n_slots):
                    spread = ONE / p[j] + gamma2
                    excess = residual[j] / (nu * spread)
                    weighted[j] = -tau * (log(spread) + kappa * log(ONE + excess))
                    seen += ONE / ((ONE + excess) * spread)
                top = weighted[0]
                for j in range(1, n_slots):
                    top = max(top, weighted[j])
                total = ZERO
                for j in range(n_slots):
                    weighted[j] = exp(weighted[j] - top)
                    total += weighted[j]
                for d in range(width):
                    read[d] = ZERO
                for j in range(n_slots):
                    mean, a = m[j], weighted[j] / total
                    for d in range(width):
                        read[d] += a * mean[width + d]
                out = latent[i, h * width :]
                for d in range(half):
                    out[d] = read[d] * c[d] - read[half + d] * s[d]
                for d in range(half):
                    out[half + d] = read[half + d] * c[d] + read[d] * s[d]
                evidence[i, h] = seen
            broken = 0
            for j in range(n_slots):
                mean = m[j]
                for d in range(2 * width):
                    broken += not abs(mean[d]) <= LARGEST
                broken += not abs(p[j]) <= LARGEST
            if broken > 0:
                finite[b] = False


@_kernel_jit
def sigmoid(x):
    """Compute 1 / (1 + e^-x) in place for x `[N, H]`."""
    for i in range(x.shape[0]):
        for h in range(x.shape[1]):
            x[i, h] = ONE / (ONE + exp(-x[i, h]))


# All kernels and their argument types, because a server must not compile while it handles requests.
_SIGNATURES: tuple[tuple[Any, str], ...] = (
    (product_numba.multiply, product_numba.SIGNATURE),
    (gelu, "void(float32[:,::1])"),
    (sigmoid, "void(float32[:,::1])"),
    (normed, "void(float32[:,::1], float32[::1], float32, float32[:,::1])"),
    (add_normed, "void(float32[:,::1], float32[:,::1], float32[::1], float32, float32[:,::1])"),
    (
        run_slots,
        "void(float32[:,::1], int64, float32[:,:,::1], float32[:,:,::1], float32[::1], float32[::1], float32[:,::1], "
        "float32[:,:,::1], float32[:,:,::1], int64[::1], int64, float32[:,:,:,:,::1], float32[:,:,:,::1], int64[::1], "
        "int64[::1], int64[::1], float32[:,::1], float32[:,::1], boolean[::1])",
    ),
)


@functools.cache
def compile_kernels() -> None:
    """Compile all kernels, or load them from the cache on disk. Later calls in the same process have no effect."""
    run_with_locks([(sys.modules[__name__], _compile)])


@functools.cache  # threads that call at the same time enter one after another
def _compile() -> None:
    for kernel, signature in _SIGNATURES:
        kernel.compile(signature)
        kernel.disable_compile()
