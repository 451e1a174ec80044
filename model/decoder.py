"""Decode with a language model that is prepared for it: constants are computed in advance, matrix products are merged,
and states are stored in one pool.

Results equal those of `LanguageModel.step`, `prefill` and `extend`. All projections of an input share one matrix
(`decoder_layers.py`). Matrices have the requested dtype; sums, the residual stream, slots and logits are float32.
Phases are wrapped in float64. The decoder must be used under `torch.no_grad`.
"""

from __future__ import annotations

import importlib.util
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rfa.model.attention.reference import attend
from rfa.model.decoder_layers import NORM_EPS, Layer, Stack, check_decodable
from rfa.model.dynamics import wrapped_phase
from rfa.model.language import LanguageModel, StepOutput
from rfa.model.layers import GATE_RANGE, PROCESS_GATE_SCALE
from rfa.model.recurrence.slots import is_on_gpu, slot_scan, warn_eager
from rfa.model.recurrence.slots_reference import SlotInputs, SlotOptions, SlotParameters, slot_step
from rfa.runtime.text.config import LanguageModelConfig, Mode


class SlotPool(NamedTuple):
    """Means `[L, R, H, S, 4D]` and precisions `[L, R, H, S]` of the memory slots of R streams, in float32."""

    means: Tensor
    precisions: Tensor


class Turn(NamedTuple):
    """Rotation by a phase, for vectors `[..., H, 2D]` with the real parts first: `x cos + swapped(x) sin`.

    Attributes:
        cos, sin: Cosine and sine of the phase, `[..., H, 2D]`. sin is negated in the half of the real parts.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def by(cls, phase: Tensor) -> Turn:
        """Create the rotation from phases `[..., H, D]`."""
        cos, sin = torch.cos(phase), torch.sin(phase)
        return cls(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))

    @property
    def into_frame(self) -> Turn:
        """Inverse rotation, for queries, keys and values `[..., 3, H, 2D]`."""
        return Turn(self.cos.unsqueeze(-3), -self.sin.unsqueeze(-3))

    def __call__(self, x: Tensor) -> Tensor:
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, -1), self.sin)


class Decoder:
    """Runs a model in attention mode and, if it has memory slots, in recurrent mode.

    Args:
        model: Float32 model with mixer "rfa", on the device that is used for decoding.
        dtype: Dtype of the matrices, float32 or bfloat16.

    Attributes:
        embedding: Embedding `[V, d]`, which is multiplied by `scale`.
        omega: Frequencies of all layers, `[H, D]`.

    Raises:
        ValueError: If the model has another mixer, or a window.
    """

    def __init__(self, model: LanguageModel, dtype: torch.dtype) -> None:
        check_decodable(model.config)
        self.config = model.config
        self.scale = math.sqrt(model.config.d_model)
        with torch.no_grad():
            self._recurrent = self._attention = Stack.of(model, "recurrent", dtype)
            if model.config.own_readout:
                self._attention = self._recurrent.with_readout(model, "attention", dtype)
            self.embedding = model.embedding.weight.detach().to(dtype)
        # All layers have the same frequencies, which the configuration determines.
        self.omega = self._recurrent.layers[0].dynamics.omega

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the matrices."""
        return self.embedding.dtype

    def stack(self, mode: Mode) -> Stack:
        """Return the blocks and the final norm with the weights of a mode."""
        return self._attention if mode == "attention" else self._recurrent

    def step(self, tokens: Tensor, positions: Tensor, noise: Tensor, pool: SlotPool, rows: Tensor) -> StepOutput:
        """Decode one token of B streams, and return the output. `rows` of the pool are updated in place. See
        `step_between`."""
        return self.step_between(tokens, positions, noise, pool, rows, rows)[0]

    def step_between(
        self, tokens: Tensor, positions: Tensor, noise: Tensor, pool: SlotPool, sources: Tensor, targets: Tensor
    ) -> tuple[StepOutput, Tensor]:
        """Decode one token of B streams. Their states are read from the pool rows `sources` and written to the pool
        rows `targets`.

        Args:
            tokens, positions: Tokens and their positions, `[B]` int64.
            noise: Scaled standard normal numbers for the sample of the latent, or zeros for its mean, `[B, H, 2D]`.
            pool: Memory slots of all streams.
            sources, targets: Pool rows to read and to write, `[B]` int64. No row may be written twice, or be written
                for one stream and read for another.

        Returns:
            The output, and a tensor `[B]` float32 that is 1 if all new states are finite and 0 otherwise.
        """
        if is_on_gpu(pool.means):
            reason = _kernels_refusal(self.config)
            if reason is None:
                return self._step_by_kernels(tokens, positions, noise, pool, sources, targets)
            warn_eager(reason)
        output = self._step_eagerly(tokens, positions, noise, pool, sources, targets)
        finite = [part.index_select(1, targets).isfinite().transpose(0, 1).flatten(1).all(1) for part in pool]
        return output, torch.stack(finite).all(0).float()

    def _step_eagerly(
        self, tokens: Tensor, positions: Tensor, noise: Tensor, pool: SlotPool, sources: Tensor, targets: Tensor
    ) -> StepOutput:
        x, turn = self._embed(tokens), self._turn(positions)
        into_frame = turn.into_frame
        for i, layer in enumerate(self._recurrent.layers):
            token, parameters, opened = self._slot_inputs(layer, x, into_frame)
            means, precisions = pool.means[i], pool.precisions[i]
            readout, new_means, new_precisions = slot_step(
                token,
                means[sources],
                precisions[sources],
                parameters,
                SlotOptions(self.config.inner, self.config.innovation),
            )
            means.index_copy_(0, targets, new_means)
            precisions.index_copy_(0, targets, new_precisions)
            latent = turn(readout.out)
            if layer is self._recurrent.layers[-1]:
                spread = torch.sqrt((1 / readout.precision + layer.dynamics.gamma2) / 2)
                latent = latent + noise * spread[..., None]
            x = self._finish(layer, x, latent, opened)
        return self._output(self._recurrent, x, readout.precision, latent)

    def _step_by_kernels(
        self, tokens: Tensor, positions: Tensor, noise: Tensor, pool: SlotPool, sources: Tensor, targets: Tensor
    ) -> tuple[StepOutput, Tensor]:
        """Return the results of `step_between`, computed with five kernel launches per layer: four fused products and
        the update of the slots."""
        from rfa.model import decoder_triton as kernels
        from rfa.model import product_triton as products

        config, layers = self.config, self._recurrent.layers
        tokens, positions, noise, sources, targets = (
            x.contiguous() for x in (tokens, positions, noise, sources, targets)
        )
        x, turn = kernels.begin(tokens, positions, self.embedding, self.scale, self.omega.double())
        outcome = kernels.Outcome.empty(len(tokens), len(layers), config.n_heads, 2 * config.head_dim, self.device)
        for i, layer in enumerate(layers):
            mixed = kernels.step_slots(
                kernels.joint_product(x, layer), turn, kernels.Gates.of(layer), layer.required_slots.parameters,
                kernels.PoolRows(pool.means[i], pool.precisions[i], sources, targets), outcome,
                noise=noise, index=i, inner=config.inner, innovation=config.innovation, dtype=self.dtype,
            )  # fmt: skip
            kernels.finish_layer(x, mixed, layer)
        norm = products.Norm(self._recurrent.norm, NORM_EPS)
        logits, log_precision, is_finite = kernels.compute_logits(x, norm, self.embedding, outcome)
        return StepOutput(logits, log_precision, outcome.latent), is_finite

    def prefill(
        self, tokens: Tensor, position: int, means: Tensor, precisions: Tensor
    ) -> tuple[StepOutput, Tensor, Tensor]:
        """Process N tokens of one stream in recurrent mode.

        Args:
            tokens: Token ids, `[N]`.
            position: Position of the first token.
            means, precisions: Slots before the tokens, `[L, H, S, 4D]` and `[L, H, S]`.

        Returns:
            The output of the last token (batch size 1), and the means and precisions after the tokens.
        """
        x, turn = self._embed(tokens[None]), self._turn(self._positions(position, tokens))
        into_frame = turn.into_frame
        after_means, after_precisions = torch.empty_like(means), torch.empty_like(precisions)
        for i, layer in enumerate(self._recurrent.layers):
            inputs, slots, opened = self._slot_inputs(layer, x, into_frame)
            readout, m, p = slot_scan(
                inputs,
                means[None, i],
                precisions[None, i],
                slots,
                inner=self.config.inner,
                innovation=self.config.innovation,
            )
            after_means[i], after_precisions[i] = m[0], p[0]
            latent = turn(readout.out)
            x = self._finish(layer, x, latent, opened)
        output = self._output(self._recurrent, x[:, -1], readout.precision[:, -1], latent[:, -1])
        return output, after_means, after_precisions

    def extend(
        self, tokens: Tensor, position: int, keys: Tensor, values: Tensor, noise: Tensor
    ) -> tuple[StepOutput, Tensor, Tensor]:
        """Process n tokens of one stream in attention mode, with `position` cached tokens.

        Args:
            tokens: Token ids, `[n]`.
            position: Number of cached tokens, and position of the first new token.
            keys, values: Cache in the rotating frame, `[L, H, position, 2D]`. Values are in this frame only if the
                model rotates them.
            noise: Scaled standard normal numbers for the sample of the last token's latent, `[1, H, 2D]`.

        Returns:
            The output of the last token (batch size 1), and the new cache rows of keys and values, `[L, H, n, 2D]`.
        """
        own = self._positions(position, tokens)
        x, turn = self._embed(tokens[None]), self._turn(own)
        into_frame = turn.into_frame
        times = torch.arange(position + len(tokens), device=self.device, dtype=torch.float64)[None]
        new_keys, new_values = [], []
        for i, layer in enumerate(self._attention.layers):
            q, k, v, gates = self._projected(layer, x, into_frame)
            new_keys.append(k[0].transpose(0, 1))
            new_values.append(v[0].transpose(0, 1))
            result = attend(
                q,
                torch.cat([keys[None, i].transpose(1, 2), k], dim=1),
                torch.cat([values[None, i].transpose(1, 2), v], dim=1),
                layer.dynamics,
                query_times=times[:, position:],
                key_times=times,
                kernel=self.config.kernel,
                prior=self.config.prior,
            )
            latent = turn(result.out) if self.config.rotate_values else result.out
            if layer is self._attention.layers[-1]:
                spread = torch.sqrt((1 / result.precision[:, -1] + layer.dynamics.gamma2) / 2)
                latent[:, -1] += noise * spread[..., None]
            x = self._finish(layer, x, latent, self._opened(layer, gates))
        output = self._output(self._attention, x[:, -1], result.precision[:, -1], latent[:, -1])
        return output, torch.stack(new_keys), torch.stack(new_values)

    def _positions(self, position: int, tokens: Tensor) -> Tensor:
        return torch.arange(position, position + len(tokens), device=self.device)

    def _turn(self, positions: Tensor) -> Turn:
        """Return the rotation out of the rotating frame at `positions` `[...]`."""
        return Turn.by(wrapped_phase(self.omega, positions, torch.float32))

    def _embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.embedding).float() * self.scale

    def _projected(self, layer: Layer, x: Tensor, into_frame: Turn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project the residual stream `[..., d]`. Return queries, keys and values `[..., H, 2D]`, and gate logits
        `[..., 2 · H · S (+ H)]`."""
        heads, width = self.config.n_heads, 2 * self.config.head_dim
        joint = product(normed(x, layer.readout.mixer_norm), layer.readout.mix_in)
        vectors, gates = joint.tensor_split([3 * heads * width], dim=-1)
        vectors = vectors.reshape(*x.shape[:-1], 3, heads, width)
        if self.config.rotate_values and not self.config.unit_norm:
            q, k, v = into_frame(vectors).unbind(-3)
            return q, k, v, gates
        pair, v = vectors[..., :2, :, :], vectors[..., 2, :, :]
        if self.config.unit_norm:
            pair = F.normalize(pair, dim=-1)
        if self.config.rotate_values:
            v = into_frame(v.unsqueeze(-3)).squeeze(-3)
        q, k = into_frame(pair).unbind(-3)
        return q, k, v, gates

    def _slot_inputs(
        self, layer: Layer, x: Tensor, into_frame: Turn
    ) -> tuple[SlotInputs, SlotParameters, Tensor | None]:
        """Return the inputs and parameters of the memory slots of a layer, and its output gates."""
        constants = layer.required_slots
        heads, slots = self.config.n_heads, self.config.n_slots
        q, k, v, gates = self._projected(layer, x, into_frame)
        factors = torch.exp((gates[..., : 2 * heads * slots] + constants.gate_bias).clamp(*GATE_RANGE))
        write, forget = factors.reshape(*x.shape[:-1], 2, heads, slots).unbind(-3)
        process = torch.add(constants.own_process, forget, alpha=PROCESS_GATE_SCALE)
        inputs = SlotInputs(q, k, v, write / layer.dynamics.eta2[:, None], process)
        return inputs, constants.parameters, self._opened(layer, gates)

    def _opened(self, layer: Layer, gates: Tensor) -> Tensor | None:
        """Return the output gates `[..., H]`, computed from the gate logits of `_projected`. Return None if the model
        has no output gates."""
        bias = layer.output_gate_bias
        return None if bias is None else torch.sigmoid(gates[..., -len(bias) :] + bias)

    def _finish(self, layer: Layer, x: Tensor, latent: Tensor, opened: Tensor | None) -> Tensor:
        """Return the residual stream after a block. `latent` `[..., H, 2D]` is the output of its mixer, and `opened`
        contains its output gates."""
        if opened is not None:
            latent = latent * opened[..., None]
        x = x + product(latent.flatten(-2), layer.readout.mix_out)
        inner = F.gelu(product(normed(x, layer.readout.feed_forward_norm), layer.up))
        return x + product(inner, layer.down)

    def _output(self, stack: Stack, x: Tensor, precision: Tensor, latent: Tensor) -> StepOutput:
        logits = product(normed(x, stack.norm), self.embedding)
        return StepOutput(logits, torch.log(precision).mean(-1), latent)


def _kernels_refusal(config: LanguageModelConfig) -> str | None:
    """Return the reason why the GPU kernels do not support the step of a model, or None if they do."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    from rfa.model.recurrence.triton import size_refusal

    return size_refusal(config.n_slots, 2 * config.head_dim, config.inner)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight.T` in float32. The factors are rounded to the dtype of the weight before they are
    multiplied."""
    rounded = x.to(weight.dtype)
    if weight.dtype == torch.float32:
        return F.linear(rounded, weight)
    if not weight.is_cuda:  # on a CPU, round as on a GPU
        return F.linear(rounded.float(), weight.float())
    flat = torch.mm(rounded.flatten(0, -2), weight.t(), out_dtype=torch.float32)
    return flat.reshape(*x.shape[:-1], -1)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    """Return x / sqrt(mean x² + eps), multiplied by the weight (RMS normalisation)."""
    return F.rms_norm(x, weight.shape, weight, NORM_EPS)
