"""Decoder for the recurrent mode of a language model. It is compiled code on one CPU core, without torch."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.text.contexts import StepOutput
from rfa.runtime.text.decoder_numba import (
    GAMMA2,
    HEAD_CONSTANTS,
    SCALARS,
    add_normed,
    compile_kernels,
    gelu,
    normed,
    run_slots,
    sigmoid,
)
from rfa.runtime.text.product_numba import Matrix

Array = NDArray[np.float32]
Rows = NDArray[np.int64]


class Slots(NamedTuple):
    """Means `[R, L, H, S, 4D]` and precisions `[R, L, H, S]` of the memory slots of R streams."""

    means: Array
    precisions: Array


@dataclass(frozen=True)
class _PackedLayer:
    """Weights and constants of one block, packed for the kernels."""

    mixer_norm: Array
    mix_in: Matrix  # query, key, value, gates and, if present, output gates: [d, 3 · H · 2D + 2 · H · S (+ H)]
    gate_bias: Array
    output_gate_bias: Array | None  # [H]
    mix_out: Matrix
    feed_forward_norm: Array
    up: Matrix
    down: Matrix
    table: Array  # [H, 8]
    decay: Array  # [1, H, S], for the lag 1 between tokens of a text
    own_process: Array  # [1, H, S]

    @classmethod
    def of(cls, index: int, weights: Mapping[str, Array], constants: Mapping[str, Array]) -> _PackedLayer:
        def transposed(*names: str) -> Matrix:
            return Matrix.of(np.concatenate([_weight(weights, f"blocks.{index}.{name}") for name in names]).T)

        def gains(name: str) -> Array:
            return np.array(_weight(weights, f"blocks.{index}.{name}"), dtype=np.float32)

        def bias(name: str) -> Array:
            return np.array(weights[f"blocks.{index}.{name}.bias"], dtype=np.float32)

        gated = ["mixer.output_gate"] if f"blocks.{index}.mixer.output_gate.weight" in weights else []
        return cls(
            mixer_norm=gains("mixer_norm"),
            mix_in=transposed("mixer.query", "mixer.key", "mixer.value", "mixer.gates", *gated),
            gate_bias=bias("mixer.gates"),
            output_gate_bias=bias("mixer.output_gate") if gated else None,
            mix_out=transposed("mixer.output"),
            feed_forward_norm=gains("feed_forward_norm"),
            up=transposed("feed_forward.up"),
            down=transposed("feed_forward.down"),
            table=np.ascontiguousarray(np.stack([constants[name][index] for name in HEAD_CONSTANTS], axis=-1)),
            decay=constants["decay"][index][None].copy(),
            own_process=constants["own_process"][index][None].copy(),
        )


def _weight(weights: Mapping[str, Array], module: str) -> Array:
    """Return the weight of a module in recurrent mode. It is the recurrent weight if there is one, and otherwise the
    weight of both modes."""
    own = weights.get(f"{module}.recurrent_weight")
    return weights[f"{module}.weight"] if own is None else own


class CompiledDecoder:
    """Runs the recurrent mode of a trained model.

    Args:
        weights: Weights of the model by parameter name.
        constants: Output of `decoder_constants`. The kernels do not check bounds, so the shapes of weights and
            constants are compared with the configuration when a bundle is opened.
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
        self, tokens: Rows, positions: Rows, noise: Array, slots: Slots, sources: Rows, targets: Rows, *, passes: Rows
    ) -> tuple[StepOutput, NDArray[np.bool_]]:
        """Process one token of each of B streams.

        Args:
            tokens, positions: Token of each stream, and its position, `[B]`.
            noise: Scaled standard normal noise for the latent sample, or zeros for the mean, `[B, H, 2D]`.
            slots: Memory slots of all streams.
            sources, targets: Rows from which slots are read and to which they are written, `[B]`. All rows must differ.
            passes: Numbers of reweighting passes K >= 1, `[B]`.

        Returns:
            The output, and whether all numbers of the new slots are finite, `[B]`.
        """
        run = _Run(self, tokens, positions, passes, 1)
        for index in range(len(self._layers)):
            evidence = run.mix(index, slots, sources, targets)
            if index == len(self._layers) - 1:
                spread = np.sqrt((1 / evidence + self._layers[-1].table[:, GAMMA2]) / 2)
                run.latent += (noise * spread[..., None]).reshape(run.latent.shape)
            run.finish(index)
        return self._output(run, evidence), run.finite

    def prefill(
        self, tokens: Rows, position: int, slots: Slots, source: int, target: int, *, passes: int, outputs: int = 0
    ) -> tuple[StepOutput | None, bool]:
        """Process N tokens of one stream at once.

        Args:
            tokens: Tokens, `[N]`.
            position: Position of the first token.
            slots: Memory slots of all streams. They are read from row `source` and written to row `target`.
            passes: Number of reweighting passes K >= 1.
            outputs: Number of last tokens whose outputs are returned.

        Returns:
            The outputs `[outputs, …]`, and whether the new slots are finite. The outputs are None if `outputs` is 0.
        """
        run = _Run(self, tokens, np.arange(position, position + len(tokens)), np.array([passes]), len(tokens))
        last = len(self._layers) - 1
        rows = np.array([source]), np.array([target])
        for index in range(last):
            run.mix(index, slots, *rows)
            run.finish(index)
        # After the slots of the last layer, only the returned outputs are computed.
        evidence = run.mix(last, slots, *rows)
        if not outputs:
            return None, bool(run.finite[0])
        run.keep_last(outputs)
        run.finish(last)
        return self._output(run, evidence[-outputs:]), bool(run.finite[0])

    def _output(self, run: _Run, evidence: Array) -> StepOutput:
        normed(run.x, self._norm, self._eps, run.normed)
        latent = run.latent.reshape(*evidence.shape, -1)
        return StepOutput(self._head.times(run.normed), np.log(evidence).mean(-1), latent)


class _Run:
    """Work arrays of a layer for the rows of one call. Each stream has `n_tokens` rows."""

    def __init__(self, decoder: CompiledDecoder, tokens: Rows, positions: Rows, passes: Rows, n_tokens: int) -> None:
        self._decoder, self._passes, self._n_tokens = decoder, passes, n_tokens
        self.x: Array = decoder._embedding[tokens] * decoder._scale
        self.normed = np.empty_like(self.x)
        self.latent = np.empty((len(tokens), 2 * decoder._omega.size), np.float32)
        self._gates: Array | None = None
        self._lags = np.zeros(len(tokens), np.int64)
        self.finite = np.ones(len(tokens) // n_tokens, np.bool_)
        phase = positions.astype(np.float64)[:, None, None] * decoder._omega
        phase -= 2 * np.pi * np.rint(phase / (2 * np.pi))
        wrapped = phase.astype(np.float32)
        self._cos, self._sin = np.cos(wrapped), np.sin(wrapped)

    def mix(self, index: int, slots: Slots, sources: Rows, targets: Rows) -> Array:
        """Update the memory slots of a layer and read them into `latent`. Return the evidence `[B · N, H]`."""
        layer, decoder = self._decoder._layers[index], self._decoder
        normed(self.x, layer.mixer_norm, decoder._eps, self.normed)
        joint = layer.mix_in.times(self.normed)
        evidence = np.empty(self._cos.shape[:2], np.float32)
        run_slots(
            joint, self._n_tokens, self._cos, self._sin, layer.gate_bias, decoder._scalars, layer.table, layer.decay,
            layer.own_process, self._lags, index, slots.means, slots.precisions, sources, targets, self._passes,
            self.latent, evidence, self.finite,
        )  # fmt: skip
        if layer.output_gate_bias is not None:
            self._gates = joint[:, -layer.output_gate_bias.size :] + layer.output_gate_bias
            sigmoid(self._gates)
        return evidence

    def keep_last(self, count: int) -> None:
        """Drop all rows except the last `count` ones."""
        self.x, self.normed, self.latent = (part[-count:].copy() for part in (self.x, self.normed, self.latent))
        self._gates = None if self._gates is None else self._gates[-count:]

    def finish(self, index: int) -> None:
        """Add the outputs of the mixer and of the MLP to the residual stream."""
        layer, decoder = self._decoder._layers[index], self._decoder
        mixed = layer.mix_out.times(self._gated())
        add_normed(self.x, mixed, layer.feed_forward_norm, decoder._eps, self.normed)
        inner = layer.up.times(self.normed)
        gelu(inner)
        self.x += layer.down.times(inner)

    def _gated(self) -> Array:
        """Return `latent` with each head scaled by its output gate."""
        if self._gates is None:
            return self.latent
        heads = self._gates.shape
        return (self.latent.reshape(*heads, -1) * self._gates[..., None]).reshape(self.latent.shape)
