"""Series network for many tokens of several columns at once, for long series on a GPU.

A token reads the memory slots of its column after the last complete patch. Only a token that completes a patch changes
them (`stream_numba.py`). Let m_j be the slots of a column after j complete patches. A layer is then

    m_{j+1} = scan(m_j, whole token j)            out_t = read(step(m_{j(t)}, token t, lag t)), j(t): patches before t

A layer is therefore one scan over the tokens of complete patches, and a separate step for each token. The matrix
products of a layer are computed for all tokens at once. The lag of the step, 1 … PATCH cells, is included in its
initial state. Because 1/p⁻ = E²/p + q, a step over the lag is equivalent to a step with decay 1 from the state E m and
p / E².

The reference implementation is `network.SeriesNetwork.states`. `decoder_numba.py` computes the same token by token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rfa.model.dynamics import wrapped_phase
from rfa.model.recurrence.slots import slot_scan
from rfa.model.recurrence.slots_reference import SlotInputs, SlotParameters
from rfa.model.recurrence.triton import slot_states_triton
from rfa.model.series.network import SeriesNetwork
from rfa.runtime.series.config import PATCH, SeriesConfig
from rfa.runtime.series.constants import series_constants
from rfa.runtime.series.decoder_numba import FARTHEST_QUANTILE

Array = np.ndarray


class PatchTokens(NamedTuple):
    """T tokens of C columns, ordered within each column. A token that completes a patch is called whole. Integers are
    int64.

    Args:
        numbers: Features, `[T, FEATURES]` float32.
        ends: Number of cells up to each token, `[T]`.
        lags: Number of cells since the last complete patch, `[T]`, from 1 to PATCH.
        column: Index of the column of each token, `[T]`.
        before: Number of whole tokens before each token in its column, `[T]`.
        whole: Indices of the whole tokens of each column, `[C, M]`. Entries after `counts` are undefined.
        counts: Number of whole tokens per column, `[C]`.
    """

    numbers: Tensor
    ends: Tensor
    lags: Tensor
    column: Tensor
    before: Tensor
    whole: Tensor
    counts: Tensor


def whole_patches(column: Array, is_whole: Array, columns: int) -> tuple[Array, Array, Array]:
    """Return the fields `before`, `whole` and `counts` of `PatchTokens`.

    Args:
        column: Index of the column of each token, `[T]`.
        is_whole: Whether each token completes a patch, `[T]`.
        columns: Number of columns.
    """
    at = np.flatnonzero(is_whole)
    counts = np.bincount(column[at], minlength=columns)
    whole = np.zeros((columns, int(counts.max(initial=0))), np.int64)
    before = np.empty(len(column), np.int64)
    for own in range(columns):
        places = at[column[at] == own]
        whole[own, : len(places)] = places
        of_own = np.flatnonzero(column == own)
        before[of_own] = np.searchsorted(places, of_own)
    return before, whole, counts


class _Layer(NamedTuple):
    """Constants of one block.

    Args:
        mix_in: Weights of query, key, value and gates, `[3 · H · 2D + 2 · H · S, d]`.
        bias: Bias of the product with `mix_in`, which is 0 except for the gates.
        decay, decay2, own_process: Decay, its square and process noise over a lag of 1 … PATCH cells, `[PATCH, H, S]`.
        parameters: Slot parameters for tokens one patch apart.
        alone: Slot parameters with decay 1, for the separate step of each token.
    """

    mixer_norm: Tensor
    mix_in: Tensor
    bias: Tensor
    mix_out: Tensor
    feed_forward_norm: Tensor
    up: Tensor
    down: Tensor
    eta2: Tensor
    decay: Tensor
    decay2: Tensor
    own_process: Tensor
    parameters: SlotParameters
    alone: SlotParameters


class PatchNetwork:
    """Runs the series network without gradients.

    Args:
        network: Float32 network in eval mode, on a device that the slot kernels support.

    Attributes:
        initial: Slots of a column before its first token, `[1, L, H, S, 4D]` and `[1, L, H, S]`.
    """

    def __init__(self, network: SeriesNetwork) -> None:
        self.config: SeriesConfig = network.config
        self._embedding, self._head = network.embedding, network.head
        weights = {name: tensor.detach() for name, tensor in network.state_dict().items()}
        constants = series_constants({name: tensor.cpu().numpy() for name, tensor in weights.items()})
        device = network.head.lead_table.device
        self._norm = weights["norm.recurrent_weight"]
        self._eps, self._process_scale = float(constants["norm_eps"]), float(constants["process_gate_scale"])
        self._gate_range = float(constants["gate_lowest"]), float(constants["gate_highest"])
        self._omega = torch.tensor(constants["omega"], device=device)
        self.initial = (
            _on(device, constants["initial_means"])[None], _on(device, constants["initial_precisions"])[None]
        )  # fmt: skip
        self._layers = [_layer(weights, constants, index, device) for index in range(self.config.n_layers)]

    @torch.no_grad()
    def states(self, tokens: PatchTokens, means: Tensor, precisions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states of the tokens, `[T, d]`, and the memory slots of the columns after them.

        Args:
            tokens: The tokens.
            means, precisions: Slots of the columns before the tokens, `[C, L, H, S, 4D]` and `[C, L, H, S]`.
        """
        x = self._embedding(tokens.numbers)
        turn = _turn(tokens.ends, self._omega)
        after = []
        for index, layer in enumerate(self._layers):
            normed = F.rms_norm(x, x.shape[-1:], layer.mixer_norm, self._eps)
            inputs = self._inputs(layer, normed, turn, tokens.lags - 1)
            latent, *slots = _mixed(layer, inputs, tokens, means[:, index], precisions[:, index])
            after.append(slots)
            x = torch.addmm(x, _rotated(latent, *turn).flatten(-2), layer.mix_out.T)
            normed = F.rms_norm(x, x.shape[-1:], layer.feed_forward_norm, self._eps)
            x = torch.addmm(x, F.gelu(normed @ layer.up.T), layer.down.T)
        after_means, after_precisions = (torch.stack(part, 1) for part in zip(*after, strict=True))
        return F.rms_norm(x, x.shape[-1:], self._norm, self._eps), after_means, after_precisions

    @torch.no_grad()
    def quantiles(self, states: Tensor, of: Tensor, asked: Tensor) -> Tensor:
        """Return the quantiles of (y - c) / s at horizons, `[K, Q]`.

        Args:
            states: States of the tokens, `[T, d]`.
            of: Index of the state of each horizon, `[K]`.
            asked: Features of the horizons, `[K, QUERY_FEATURES]`. See `LeadQueries`.
        """
        hidden, weights = self._head.of_states(states)
        found = self._head.ahead(hidden[of], weights[of], asked)
        return torch.sinh(found.clamp(-FARTHEST_QUANTILE, FARTHEST_QUANTILE))

    def _inputs(self, layer: _Layer, normed: Tensor, turn: tuple[Tensor, Tensor], lag: Tensor) -> SlotInputs:
        """Return the inputs of the memory slots in the rotating frame. `lag` is the lag of each token in cells, minus
        one."""
        heads, slots = layer.decay.shape[1:]
        joint = torch.addmm(layer.bias, normed, layer.mix_in.T)
        vectors, gates = joint.split([joint.shape[1] - 2 * heads * slots, 2 * heads * slots], 1)
        cos, sin = turn
        turned = _rotated(vectors.unflatten(1, (3, heads, -1)), cos[:, None], -sin[:, None])
        opened = gates.clamp(*self._gate_range).exp().unflatten(1, (2, heads, slots))
        write, forget = opened.unbind(1)
        process = torch.add(layer.own_process[lag], forget, alpha=self._process_scale)
        q, k, v = turned.unbind(1)
        return SlotInputs(q, k, v, write / layer.eta2, process)


def _mixed(
    layer: _Layer, inputs: SlotInputs, tokens: PatchTokens, means: Tensor, precisions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the readouts of the tokens in a layer, `[T, …]`, and the memory slots of the columns after them."""
    at_means, at_precisions = means[:, None], precisions[:, None]  # [C, M + 1, …], after 0 … M whole patches
    if tokens.whole.shape[1]:
        whole = SlotInputs(*(part[tokens.whole] for part in inputs))
        at_means, at_precisions = slot_states_triton(whole, means, precisions, layer.parameters)
    lag, place = tokens.lags - 1, (tokens.column, tokens.before)
    readout, *_ = slot_scan(
        SlotInputs(*(part[:, None] for part in inputs)),
        at_means[place] * layer.decay[lag][..., None],
        at_precisions[place] / layer.decay2[lag],
        layer.alone,
    )
    columns = torch.arange(len(means), device=means.device)
    return readout.out[:, 0], at_means[columns, tokens.counts], at_precisions[columns, tokens.counts]


def _layer(weights: Mapping[str, Tensor], constants: Mapping[str, Array], index: int, device: torch.device) -> _Layer:
    block = f"blocks.{index}."
    names = ("query.recurrent_weight", "key.weight", "value.weight", "gates.weight")
    mix_in = torch.cat([weights[f"{block}mixer.{name}"] for name in names])
    gate_bias = weights[f"{block}mixer.gates.bias"]
    own = {name: _on(device, constants[name][index]) for name in (*SlotParameters._fields, "eta2", "own_process")}
    decay, patch = own["decay"], SlotParameters(**{name: own[name] for name in SlotParameters._fields})
    return _Layer(
        weights[f"{block}mixer_norm.recurrent_weight"],
        mix_in,
        F.pad(gate_bias, (len(mix_in) - len(gate_bias), 0)),
        weights[f"{block}mixer.output.recurrent_weight"],
        weights[f"{block}feed_forward_norm.recurrent_weight"],
        weights[f"{block}feed_forward.up.weight"],
        weights[f"{block}feed_forward.down.weight"],
        own["eta2"][:, None],
        decay,
        decay.square(),
        own["own_process"],
        patch._replace(decay=decay[PATCH - 1]),
        patch._replace(decay=torch.ones_like(decay[0])),
    )


def _on(device: torch.device, array: Array) -> Tensor:
    return torch.tensor(array, dtype=torch.float32, device=device)


def _turn(ends: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosine and sine of the phases of tokens, `[T, H, D]`. The phases are wrapped in float64.

    Integer cells are converted to float64 first, because torch divides integers in float32, which is inexact above
    2^24.
    """
    phase = wrapped_phase(omega, ends.double() / PATCH, torch.float32)
    return phase.cos(), phase.sin()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return rotated vectors like `dynamics.rotate`, given the cosine and the sine of the phase."""
    real, imaginary = x.chunk(2, -1)
    return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], -1)
