"""Recurrent mode of the series network on one CPU core, in compiled loops without torch.

The equations are in `network.py`. Slots, norms and products are in `rfa.runtime.text`. A row is one token of one
stream. It reads the memory slots of the stream as they were after the last complete patch. Every row is computed
separately, so its bits do not depend on the other rows of a call.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rfa.runtime import handles, kernel_calls, views
from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.handles import Handle, opened
from rfa.runtime.series import config, leads
from rfa.runtime.series.config import LEVELS, MEDIAN, PATCH, PATHS
from rfa.runtime.series.constants import series_constants
from rfa.runtime.series.leads import LEAD_NUMBERS
from rfa.runtime.text import decoder_numba, math_numba, product_numba
from rfa.runtime.text.decoder_numba import HEAD_CONSTANTS, SCALARS, add_normed, gelu, normed, run_slots
from rfa.runtime.text.math_numba import HALF, ONE, ZERO, exp, log
from rfa.runtime.text.product_numba import PANEL, Panels, multiply, pack
from rfa.runtime.uncertainty import copy_arrays

Array = NDArray[np.float32]
QUANTILES = len(LEVELS)
# Other modules whose functions the kernels of this module call.
SOURCES = (
    config, copy_arrays, decoder_numba, handles, kernel_calls, leads, math_numba, product_numba, views,
)  # fmt: skip
# Maximum of asinh of the distance of a quantile from the centre, in scales.
FARTHEST_QUANTILE = 20.0
CIRCLE = 2 * np.pi
FARTHEST = np.float32(FARTHEST_QUANTILE)
# Coefficients of the Taylor series of sinh.
THIRD, FIFTH, SEVENTH = (np.float32(1 / math.factorial(order)) for order in (3, 5, 7))
QUERY_FEATURES = PATHS + LEAD_NUMBERS


class Layers(NamedTuple):
    """Weights of all blocks, stacked. Matrices are stored in panels `[L, panels, in, W]`. See `product_numba.pack`.

    `mix_in` contains query, key, value and gates. `decay` and `own_process` have shape `[L, PATCH, H, S]`, for lags of
    1 to PATCH cells.
    """

    mixer_norm: Array
    mix_in: Panels
    gate_bias: Array
    mix_out: Panels
    feed_forward_norm: Array
    up: Panels
    down: Panels
    table: Array
    decay: Array
    own_process: Array


class Embedding(NamedTuple):
    """Weights that map the features of a token to the residual stream, and the norm after the blocks."""

    first: Panels
    first_bias: Array
    second: Panels
    second_bias: Array
    norm: Array


class Head(NamedTuple):
    """Weights that map states and queries to quantiles."""

    state: Panels
    state_bias: Array
    query: Panels
    inner: Panels
    inner_bias: Array
    out: Panels
    out_bias: Array
    follow: Panels
    follow_bias: Array


class Weights(NamedTuple):
    """All weights of the network. `omega` contains the frequencies `[H, D]` of the rotating frames, and `scalars` the
    numbers named in SCALARS."""

    embedding: Embedding
    layers: Layers
    head: Head
    omega: NDArray[np.float64]
    scalars: Array


@inline_jit
def _add_bias(x, bias):
    for i in range(x.shape[0]):
        for d in range(bias.size):
            x[i, d] += bias[d]


@inline_jit
def _write_rotation(ends, omega, cos, sin):
    """Compute the cosine and sine of the tokens' rotating frames. The phase is wrapped in float64."""
    for i in range(len(ends)):
        for h in range(omega.shape[0]):
            for d in range(omega.shape[1]):
                phase = ends[i] / PATCH * omega[h, d]
                phase -= CIRCLE * np.rint(phase / CIRCLE)
                cos[i, h, d], sin[i, h, d] = np.cos(phase), np.sin(phase)


@kernel_jit(*SOURCES, allocates=True)
def compute_states(tokens, ends, lags, handle, means, precisions, states):
    """Compute the states `[n, d]` after one token of each of n streams. See `SeriesDecoder.forward`.

    `handle` is a handle of `Weights`. Slots are not checked for non-finite numbers, because these also occur in the
    quantiles of the token.
    """
    weights: Any = opened(handle)
    embedding, layers, scalars, omega = weights.embedding, weights.layers, weights.scalars, weights.omega
    n, d = tokens.shape[0], embedding.second_bias.size
    cos, sin = np.empty((n, *omega.shape), np.float32), np.empty((n, *omega.shape), np.float32)
    _write_rotation(ends, omega, cos, sin)
    before, rows, finite = np.empty(n, np.int64), np.empty(n, np.int64), np.ones(n, np.bool_)
    passes = np.ones(n, np.int64)
    for i in range(n):
        before[i], rows[i] = lags[i] - 1, i
    hidden = np.empty((n, embedding.first_bias.size), np.float32)
    multiply(tokens, embedding.first, hidden)
    _add_bias(hidden, embedding.first_bias)
    gelu(hidden)
    x = np.empty((n, d), np.float32)
    multiply(hidden, embedding.second, x)
    _add_bias(x, embedding.second_bias)
    heads = layers.decay.shape[2]
    latent = np.empty((n, heads * 2 * cos.shape[2]), np.float32)
    evidence = np.empty((n, heads), np.float32)
    joint = np.empty((n, layers.mix_in.shape[1] * PANEL), np.float32)
    mixed = np.empty((n, d), np.float32)
    inner = np.empty((n, layers.up.shape[1] * PANEL), np.float32)
    eps = scalars[3]
    for index in range(layers.table.shape[0]):
        normed(x, layers.mixer_norm[index], eps, states)
        multiply(states, layers.mix_in[index], joint)
        run_slots(
            joint, n // rows.size, cos, sin, layers.gate_bias[index], scalars, layers.table[index],
            layers.decay[index], layers.own_process[index], before, index, means, precisions, rows, rows, passes,
            latent, evidence, finite,
        )  # fmt: skip
        multiply(latent, layers.mix_out[index], mixed)
        add_normed(x, mixed, layers.feed_forward_norm[index], eps, states)
        multiply(states, layers.up[index], inner)
        gelu(inner)
        multiply(inner, layers.down[index], mixed)
        for i in range(n):
            for k in range(d):
                x[i, k] += mixed[i, k]
    normed(x, embedding.norm, eps, states)


@kernel_jit(*SOURCES, allocates=True)
def compute_quantiles(states, source, queries, handle, quantiles):
    """Compute the quantiles `[k, Q]` of queries. See `SeriesDecoder.quantiles`."""
    head: Any = opened(handle).head
    n, k = states.shape[0], queries.shape[0]
    shared = np.empty((n, head.state_bias.size), np.float32)
    multiply(states, head.state, shared)
    _add_bias(shared, head.state_bias)
    follow = np.empty((n, head.follow.shape[0] * PANEL), np.float32)
    multiply(states, head.follow, follow)
    _add_bias(follow, head.follow_bias)
    hidden = np.empty((k, head.state_bias.size), np.float32)
    multiply(queries, head.query, hidden)
    for i in range(k):
        row = shared[source[i]]
        for d in range(row.size):
            hidden[i, d] += row[d]
    gelu(hidden)
    inner = np.empty((k, head.inner_bias.size), np.float32)
    multiply(hidden, head.inner, inner)
    _add_bias(inner, head.inner_bias)
    gelu(inner)
    raw = np.empty((k, head.out.shape[0] * PANEL), np.float32)
    multiply(inner, head.out, raw)
    _add_bias(raw, head.out_bias)
    for i in range(k):
        median = raw[i, MEDIAN]
        for j in range(PATHS):
            median += follow[source[i], j] * queries[i, j]
        quantiles[i, MEDIAN] = median
        for q in range(QUANTILES):
            # softplus
            raw[i, q] = log(ONE + exp(-abs(raw[i, q]))) + max(raw[i, q], ZERO)
        for q in range(MEDIAN + 1, QUANTILES):
            quantiles[i, q] = quantiles[i, q - 1] + raw[i, q]
        for q in range(MEDIAN - 1, -1, -1):
            quantiles[i, q] = quantiles[i, q + 1] - raw[i, q]
        for q in range(QUANTILES):
            x = min(max(quantiles[i, q], -FARTHEST), FARTHEST)
            # sinh, from its Taylor series where e^x - e^-x would cancel
            square = x * x
            near = x * (ONE + square * (THIRD + square * (FIFTH + square * SEVENTH)))
            far = HALF * (exp(x) - exp(-x))
            quantiles[i, q] = near if square < ONE else far


def _panels(weight: Array) -> Panels:
    """Return matrices `[..., out, in]` in panels."""
    return pack(weight.swapaxes(-1, -2))


def _padded(bias: Array) -> Array:
    """Return a bias that is padded to the width of its matrix's panels."""
    return np.pad(bias, (0, -bias.size % PANEL)).astype(np.float32)


@dataclass(frozen=True)
class SeriesDecoder:
    """Runs the recurrent mode of a trained series network."""

    weights: Weights
    initial_means: Array
    initial_precisions: Array

    @classmethod
    def of(cls, weights: Mapping[str, Array]) -> SeriesDecoder:
        """Create a decoder from the weights of a network by parameter name."""
        constants = series_constants(weights)
        count = len(constants["decay"])

        def stacked(make):
            return np.ascontiguousarray(np.stack([make(f"blocks.{index}.") for index in range(count)]))

        def mix_in(block):
            names = ("query.recurrent_weight", "key.weight", "value.weight", "gates.weight")
            return np.concatenate([weights[f"{block}mixer.{name}"] for name in names])

        table = np.stack([constants[name] for name in HEAD_CONSTANTS], axis=-1).astype(np.float32)
        layers = Layers(
            stacked(lambda block: weights[f"{block}mixer_norm.recurrent_weight"]),
            _panels(stacked(mix_in)),
            stacked(lambda block: weights[f"{block}mixer.gates.bias"]),
            _panels(stacked(lambda block: weights[f"{block}mixer.output.recurrent_weight"])),
            stacked(lambda block: weights[f"{block}feed_forward_norm.recurrent_weight"]),
            _panels(stacked(lambda block: weights[f"{block}feed_forward.up.weight"])),
            _panels(stacked(lambda block: weights[f"{block}feed_forward.down.weight"])),
            np.ascontiguousarray(table),
            np.ascontiguousarray(constants["decay"], np.float32),
            np.ascontiguousarray(constants["own_process"], np.float32),
        )
        embedding = Embedding(
            _panels(weights["embedding.0.weight"]), weights["embedding.0.bias"].copy(),
            _panels(weights["embedding.2.weight"]), weights["embedding.2.bias"].copy(),
            weights["norm.recurrent_weight"].copy(),
        )  # fmt: skip
        head = Head(
            _panels(weights["head.state.weight"]), weights["head.state.bias"].copy(),
            _panels(weights["head.asked.weight"]),
            _panels(weights["head.inner.weight"]), weights["head.inner.bias"].copy(),
            _panels(weights["head.out.weight"]), _padded(weights["head.out.bias"]),
            _panels(weights["head.follow.weight"]), _padded(weights["head.follow.bias"]),
        )  # fmt: skip
        scalars = np.array([constants[name] for name in SCALARS], np.float32)
        return cls(
            Weights(embedding, layers, head, np.ascontiguousarray(constants["omega"], np.float64), scalars),
            np.ascontiguousarray(constants["initial_means"], np.float32),
            np.ascontiguousarray(constants["initial_precisions"], np.float32),
        )  # fmt: skip

    @cached_property
    def handle(self) -> Handle:
        """Handle of the weights, for compiled code."""
        return Handle(self.weights)

    @property
    def width(self) -> int:
        """Number of elements of a state."""
        return int(self.weights.embedding.norm.size)

    def forward(
        self, tokens: Array, ends: NDArray[np.int64], lags: NDArray[np.int64], means: Array, precisions: Array
    ) -> Array:
        """Return the states `[n, d]` after one token of each of n streams.

        Args:
            tokens: Features of the tokens, `[n, FEATURES]`.
            ends: Number of cells up to each token, `[n]`.
            lags: Number of cells since the last complete patch, from 1 to PATCH, `[n]`.
            means, precisions: Memory slots before each token, `[n, L, H, S, 4D]` and `[n, L, H, S]`. They are
                overwritten with those after the token.
        """
        states = np.empty((len(tokens), self.width), np.float32)
        compute_states(tokens, ends, lags, self.handle, means, precisions, states)
        return states

    def quantiles(self, states: Array, source: NDArray[np.int64], queries: Array) -> Array:
        """Return the quantiles `[k, Q]` of (y - c) / s.

        Args:
            states: States of the tokens, `[n, d]`.
            source: Index of the state that each query refers to, `[k]`.
            queries: Features of the queries, `[k, QUERY_FEATURES]`. See `network.LeadQueries`.
        """
        quantiles = np.empty((len(queries), QUANTILES), np.float32)
        compute_quantiles(states, source, queries, self.handle, quantiles)
        return quantiles
