"""The recurrent decoder of `decoder.py` on one CPU core, without torch, in compiled loops.

Equations: `layers.py`, and `recurrence/slots_reference.py` with K = 1. Layout: float32, rows `[B · N, …]` with the
tokens of a stream one after another, slots of R streams `[R, L, H, S, 4D]` and `[R, L, H, S]`. Every loop runs over the
numbers of one row, and the products (`product_numba`) sum each row on its own: a row comes out the same, bit for bit,
in whatever company, and a prompt in whatever pieces.

exp, log and erf are polynomials that the compiler turns into vector instructions, each to about 1e-7. Licences of the
compiler stop at reassociation and contraction: NaN and infinity go through, and `finite` tells of them.

A kernel and all that it calls are in one file, because the compiler's cache on disk looks at nothing else when it asks
what changed.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from rfa.runtime.compiling import run_with_locks
from rfa.runtime.text import product_numba
from rfa.runtime.text.product_numba import Matrix

Array = NDArray[np.float32]
Rows = NDArray[np.int64]

# Columns of the per-head parameter table, in the order of `HEAD_CONSTANTS`.
NU, KAPPA, WEIGHT_EXPONENT, RESIDUAL_NOISE, GAMMA2, TAU, DELTA, ETA2 = range(8)
HEAD_CONSTANTS = ("nu", "kappa", "weight_exponent", "residual_noise", "gamma2", "tau", "delta", "eta2")
SCALARS = ("gate_lowest", "gate_highest", "process_gate_scale", "norm_eps")

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
INFINITY = np.float32(np.inf)
LARGEST = np.finfo(np.float32).max
SQRT_HALF = np.float32(math.sqrt(0.5))

_options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
_compiled = numba.njit(**_options, fastmath={"reassoc", "contract", "arcp", "nsz"})
# No reassociation: it would undo the rounding that these are built on. Part of every kernel that calls them.
_function = numba.njit(error_model="numpy", fastmath={"contract"}, forceinline=True)

# exp: 2^n e^r with n = round(x / ln 2); ln 2 in two parts, the first with so few bits that n times it is exact.
LOWEST_EXPONENT, HIGHEST_EXPONENT = np.float32(-87.3), np.float32(88.3)
LOG2_E = np.float32(1.44269504088896341)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# Added to a float32 it leaves the nearest integer in the low bits of the mantissa.
ROUNDING = np.float32(12582912.0)
ROUNDING_BITS = np.int32(0x4B400000)
BIAS, MANTISSA_BITS = np.int32(127), np.int32(23)
# Minimax polynomials: Moshier, Cephes (expf, logf).
EXP = tuple(
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
LOG = tuple(
    np.float32(c)
    for c in (
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )
)  # fmt: skip
SQRT_HALF_BITS = np.int32(0x3F3504F3)
# erf: an odd rational function of x in [-4, 4], where 1 - erf(4) is below half a unit of the last place of 1
# (the coefficients are those of Eigen's float32 erf).
ERF_LIMIT = np.float32(4)
ERF_ABOVE = tuple(
    np.float32(c)
    for c in (
        -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
        -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
    )
)  # fmt: skip
ERF_BELOW = tuple(
    np.float32(c)
    for c in (
        -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
        -1.42647390514189e-02,
    )
)  # fmt: skip


@_function
def exp(x):
    """e^x for x <= 88.3; at least e^-87.3, and at most e^88.3."""
    x = LOWEST_EXPONENT if x < LOWEST_EXPONENT else x  # NaN is not less, and stays
    x = HIGHEST_EXPONENT if x > HIGHEST_EXPONENT else x
    shifted = np.float32(x * LOG2_E + ROUNDING)
    n = shifted - ROUNDING
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = EXP[0]
    p = p * r + EXP[1]
    p = p * r + EXP[2]
    p = p * r + EXP[3]
    p = p * r + EXP[4]
    p = p * r + EXP[5]
    power = np.int32((shifted.view(np.int32) - ROUNDING_BITS + BIAS) << MANTISSA_BITS)
    return (p * (r * r) + r + ONE) * power.view(np.float32)


@_function
def log(x):
    """ln x of a normal x > 0; infinity and NaN stay what they are."""
    x = np.float32(x)
    bits = np.int32(x.view(np.int32))
    e = np.int32(np.int32(bits - SQRT_HALF_BITS) >> MANTISSA_BITS)
    mantissa = np.int32(bits - (e << MANTISSA_BITS))
    f = mantissa.view(np.float32) - ONE  # x = (1 + f) 2^e, 1 + f in [sqrt(1/2), sqrt(2))
    n = np.float32(e)
    p = LOG[0]
    p = p * f + LOG[1]
    p = p * f + LOG[2]
    p = p * f + LOG[3]
    p = p * f + LOG[4]
    p = p * f + LOG[5]
    p = p * f + LOG[6]
    p = p * f + LOG[7]
    p = p * f + LOG[8]
    square = f * f
    value = (f * square * p + n * LN2_LOW - HALF * square) + f + n * LN2_HIGH
    return value if x < INFINITY else x


@_function
def erf(x):
    """The error function."""
    x = -ERF_LIMIT if x < -ERF_LIMIT else x
    x = ERF_LIMIT if x > ERF_LIMIT else x
    square = x * x
    above = ERF_ABOVE[0]
    above = above * square + ERF_ABOVE[1]
    above = above * square + ERF_ABOVE[2]
    above = above * square + ERF_ABOVE[3]
    above = above * square + ERF_ABOVE[4]
    above = above * square + ERF_ABOVE[5]
    above = above * square + ERF_ABOVE[6]
    below = ERF_BELOW[0]
    below = below * square + ERF_BELOW[1]
    below = below * square + ERF_BELOW[2]
    below = below * square + ERF_BELOW[3]
    below = below * square + ERF_BELOW[4]
    return x * above / below


@_compiled
def gelu(x):
    """x Φ(x), in place. x: `[n, d]`."""
    for i in range(x.shape[0]):
        row = x[i]
        for d in range(row.size):
            value = row[d]
            row[d] = HALF * value * (ONE + erf(value * SQRT_HALF))


@_compiled
def normed(x, weight, eps, out):
    """RMSNorm of rows `[n, d]`."""
    for i in range(x.shape[0]):
        row, place = x[i], out[i]
        total = ZERO
        for d in range(row.size):
            total += row[d] * row[d]
        scale = ONE / math.sqrt(total / np.float32(row.size) + eps)
        for d in range(row.size):
            place[d] = row[d] * scale * weight[d]


@_compiled
def add_normed(x, y, weight, eps, out):
    """x += y, then RMSNorm of x."""
    for i in range(x.shape[0]):
        row, more = x[i], y[i]
        for d in range(row.size):
            row[d] += more[d]
    normed(x, weight, eps, out)


@_function
def _clamped(x, lowest, highest):
    """x in [lowest, highest]; NaN stays."""
    x = lowest if x < lowest else x
    return highest if x > highest else x


@_compiled
def run_slots(
    joint, n_tokens, cos, sin, gate_bias, scalars, table, decay, own_process, lags, layer, means, precisions, sources,
    targets, latent, evidence, finite,
):  # fmt: skip
    """The mixer of a layer between its products: turn into the frame, run the slots, read them out, turn back.

    joint: `[B · N, 3 · H · 2D + 2 · H · S …]`: query, key, value and the gates; overwritten. cos, sin: `[B · N, H, D]`.
    decay, own_process: `[T, H, S]`, over each lag that there is; lags `[B · N]`: which of them lies before a token.
    The slots are read from rows `sources` of means and precisions and written to rows `targets`, both `[B]`, apart.
    latent `[B · N, H · 2D]`, evidence `[B · N, H]`; finite `[B]` turns false where a number of the new slots is none.
    """
    _, n_heads, n_slots = decay.shape
    half = cos.shape[2]
    width = 2 * half
    first_gate = 3 * n_heads * width
    n_gates = 2 * n_heads * n_slots
    lowest, highest, process_scale = scalars[0], scalars[1], scalars[2]
    vectors = np.empty((3, width), np.float32)
    read = np.empty(width, np.float32)
    # Each loop over slots writes one array and reads few: more of them, and the compiler would not prove them apart.
    residual = np.empty(n_slots, np.float32)
    variance = np.empty(n_slots, np.float32)
    weighted = np.empty(n_slots, np.float32)
    gain = np.empty(n_slots, np.float32)
    for i in range(cos.shape[0]):
        gates = joint[i, first_gate:]
        for j in range(n_gates):
            gates[j] = exp(_clamped(gates[j] + gate_bias[j], lowest, highest))
    for b in range(sources.size):
        for h in range(n_heads):
            m, p = means[targets[b], layer, h], precisions[targets[b], layer, h]
            m[:] = means[sources[b], layer, h]
            p[:] = precisions[sources[b], layer, h]
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
                read[:] = ZERO
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


@_compiled
def _sigmoid(x):
    """1 / (1 + e^-x) `[N, H]`, in place."""
    for i in range(x.shape[0]):
        for h in range(x.shape[1]):
            x[i, h] = ONE / (ONE + exp(-x[i, h]))


# Everything that is ever called, with the types that it is called with: a server must not compile while it serves.
_SIGNATURES = (
    (product_numba.multiply, product_numba.SIGNATURE),
    (gelu, "void(float32[:,::1])"),
    (_sigmoid, "void(float32[:,::1])"),
    (normed, "void(float32[:,::1], float32[::1], float32, float32[:,::1])"),
    (add_normed, "void(float32[:,::1], float32[:,::1], float32[::1], float32, float32[:,::1])"),
    (
        run_slots,
        "void(float32[:,::1], int64, float32[:,:,::1], float32[:,:,::1], float32[::1], float32[::1], float32[:,::1], "
        "float32[:,:,::1], float32[:,:,::1], int64[::1], int64, float32[:,:,:,:,::1], float32[:,:,:,::1], int64[::1], "
        "int64[::1], float32[:,::1], float32[:,::1], boolean[::1])",
    ),
)


@functools.cache
def compile_kernels() -> None:
    """Compile all kernels, or take them from the cache on disk: one process compiles, and the others wait for it.

    Once in a process: later calls touch no file. Kernels of other models that are made of these may have compiled
    them already; they are closed all the same.
    """
    run_with_locks([(sys.modules[__name__], _compile)])


@functools.cache  # of threads that came together, the lock lets one in after the other
def _compile() -> None:
    for kernel, signature in _SIGNATURES:
        kernel.compile(signature)
        kernel.disable_compile()


class DecoderOutput(NamedTuple):
    """logits `[B, V]`, log_precision `[B]`, latent `[B, H, 2D]`, of the last token of each row."""

    logits: Array
    log_precision: Array
    latent: Array


class Slots(NamedTuple):
    """Slots of R streams: means `[R, L, H, S, 4D]`, precisions `[R, L, H, S]`."""

    means: Array
    precisions: Array


@dataclass(frozen=True)
class _PackedLayer:
    """One block."""

    mixer_norm: Array
    mix_in: Matrix  # query, key, value, gates, output gates if there are any: [d, 3 · H · 2D + 2 · H · S (+ H)]
    gate_bias: Array
    output_gate_bias: Array | None  # [H]
    mix_out: Matrix
    feed_forward_norm: Array
    up: Matrix
    down: Matrix
    table: Array  # [H, 8]
    decay: Array  # [1, H, S]: tokens of a text are one apart
    own_process: Array  # [1, H, S]

    @classmethod
    def of(cls, index: int, weights: Mapping[str, Array], constants: Mapping[str, Array]) -> _PackedLayer:
        def turned(*names: str) -> Matrix:
            return Matrix.of(np.concatenate([_weight(weights, f"blocks.{index}.{name}") for name in names]).T)

        def gains(name: str) -> Array:
            return np.array(_weight(weights, f"blocks.{index}.{name}"), dtype=np.float32)

        def bias(name: str) -> Array:
            return np.array(weights[f"blocks.{index}.{name}.bias"], dtype=np.float32)

        gated = ["mixer.output_gate"] if f"blocks.{index}.mixer.output_gate.weight" in weights else []
        return cls(
            mixer_norm=gains("mixer_norm"),
            mix_in=turned("mixer.query", "mixer.key", "mixer.value", "mixer.gates", *gated),
            gate_bias=bias("mixer.gates"),
            output_gate_bias=bias("mixer.output_gate") if gated else None,
            mix_out=turned("mixer.output"),
            feed_forward_norm=gains("feed_forward_norm"),
            up=turned("feed_forward.up"),
            down=turned("feed_forward.down"),
            table=np.ascontiguousarray(np.stack([constants[name][index] for name in HEAD_CONSTANTS], axis=-1)),
            decay=constants["decay"][index][None].copy(),
            own_process=constants["own_process"][index][None].copy(),
        )


def _weight(weights: Mapping[str, Array], module: str) -> Array:
    """What a module of the recurrent mode multiplies by."""
    return weights[_name(weights, module)]


def _name(weights: Mapping[str, Array], module: str) -> str:
    """Its own matrix or gains where the modes do not share them."""
    own = f"{module}.recurrent_weight"
    return own if own in weights else f"{module}.weight"


class CompiledDecoder:
    """The recurrent mode of a trained model.

    Args:
        weights: of the model, by the names of its modules.
        constants: what `decoder_constants` gives. The loops take sizes from the one and addresses from the
            other, and look at no bounds: opening a bundle holds both to its configuration.
    """

    def __init__(self, weights: Mapping[str, Array], constants: Mapping[str, NDArray[Any]]) -> None:
        self._layers = [_PackedLayer.of(index, weights, constants) for index in range(len(constants["decay"]))]
        self._omega: NDArray[np.float64] = constants["omega"]
        self._embedding: Array = weights["embedding.weight"]
        self._head = Matrix.of(self._embedding.T)
        self._scale = np.float32(math.sqrt(self._embedding.shape[1]))
        self._norm = np.array(_weight(weights, "norm"), dtype=np.float32)
        self._scalars = np.array([constants[name] for name in SCALARS], dtype=np.float32)
        self._eps = np.float32(constants["norm_eps"])
        compile_kernels()

    def step(
        self, tokens: Rows, positions: Rows, noise: Array, slots: Slots, sources: Rows, targets: Rows
    ) -> tuple[DecoderOutput, NDArray[np.bool_]]:
        """One token of B streams.

        Args:
            tokens, positions, sources, targets: `[B]`; slots are read from rows `sources` and written to `targets`, of
                which none is among either twice.
            noise: `[B, H, 2D]` scaled standard normal for the latent sample, zeros for the mean.

        Returns:
            the output, and for each stream whether all numbers of its new slots are finite.
        """
        run = _Run(self, tokens, positions, 1)
        for index in range(len(self._layers)):
            evidence = run.mix(index, slots, sources, targets)
            if index == len(self._layers) - 1:
                spread = np.sqrt((1 / evidence + self._layers[-1].table[:, GAMMA2]) / 2)
                run.latent += (noise * spread[..., None]).reshape(run.latent.shape)
            run.finish(index)
        return self._output(run, evidence), run.finite

    def prefill(
        self, tokens: Rows, position: int, slots: Slots, source: int, target: int, *, with_output: bool = False
    ) -> tuple[DecoderOutput | None, bool]:
        """N tokens `[N]` of one stream at once, from the slots in row `source` to those in row `target`.

        Returns:
            the output of the last token (a batch of one) if it is asked for, and whether the slots are finite.
        """
        run = _Run(self, tokens, np.arange(position, position + len(tokens)), len(tokens))
        last = len(self._layers) - 1
        rows = np.array([source]), np.array([target])
        for index in range(last):
            run.mix(index, slots, *rows)
            run.finish(index)
        # What follows the slots of the last layer is for the output only.
        evidence = run.mix(last, slots, *rows)
        if not with_output:
            return None, bool(run.finite[0])
        run.keep_last()
        run.finish(last)
        return self._output(run, evidence[-1:]), bool(run.finite[0])

    def _output(self, run: _Run, evidence: Array) -> DecoderOutput:
        normed(run.x, self._norm, self._eps, run.normed)
        latent = run.latent.reshape(*evidence.shape, -1)
        return DecoderOutput(self._head.times(run.normed), np.log(evidence).mean(-1), latent)


class _Run:
    """The rows of one call on their way through the layers, `n_tokens` of each stream."""

    def __init__(self, decoder: CompiledDecoder, tokens: Rows, positions: Rows, n_tokens: int) -> None:
        self._decoder, self._n_tokens = decoder, n_tokens
        self.x: Array = decoder._embedding[tokens] * decoder._scale
        self.normed = np.empty_like(self.x)
        self.latent = np.empty((len(tokens), 2 * decoder._omega.size), np.float32)
        self._opened: Array | None = None
        self._lags = np.zeros(len(tokens), np.int64)
        self.finite = np.ones(len(tokens) // n_tokens, np.bool_)
        phase = positions.astype(np.float64)[:, None, None] * decoder._omega
        phase -= 2 * np.pi * np.rint(phase / (2 * np.pi))
        wrapped = phase.astype(np.float32)
        self._cos, self._sin = np.cos(wrapped), np.sin(wrapped)

    def mix(self, index: int, slots: Slots, sources: Rows, targets: Rows) -> Array:
        """The slots of a layer take the tokens and are read into `latent`; the evidence `[B · N, H]`."""
        layer, decoder = self._decoder._layers[index], self._decoder
        normed(self.x, layer.mixer_norm, decoder._eps, self.normed)
        joint = layer.mix_in.times(self.normed)
        evidence = np.empty(self._cos.shape[:2], np.float32)
        run_slots(
            joint, self._n_tokens, self._cos, self._sin, layer.gate_bias, decoder._scalars, layer.table, layer.decay,
            layer.own_process, self._lags, index, slots.means, slots.precisions, sources, targets, self.latent,
            evidence, self.finite,
        )  # fmt: skip
        if layer.output_gate_bias is not None:
            self._opened = joint[:, -layer.output_gate_bias.size :] + layer.output_gate_bias
            _sigmoid(self._opened)
        return evidence

    def keep_last(self) -> None:
        """Go on with the last row only."""
        self.x, self.normed, self.latent = (part[-1:].copy() for part in (self.x, self.normed, self.latent))
        self._opened = None if self._opened is None else self._opened[-1:]

    def finish(self, index: int) -> None:
        """The residual stream after the block."""
        layer, decoder = self._decoder._layers[index], self._decoder
        mixed = layer.mix_out.times(self._gated())
        add_normed(self.x, mixed, layer.feed_forward_norm, decoder._eps, self.normed)
        inner = layer.up.times(self.normed)
        gelu(inner)
        self.x += layer.down.times(inner)

    def _gated(self) -> Array:
        """`latent`, each head as far as its output gate is open."""
        if self._opened is None:
            return self.latent
        heads = self._opened.shape
        return (self.latent.reshape(*heads, -1) * self._opened[..., None]).reshape(self.latent.shape)
