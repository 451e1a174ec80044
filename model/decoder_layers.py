"""Compute the constants of a trained language model for decoding from its raw parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from rfa.model.blocks import Block
from rfa.model.dynamics import Dynamics
from rfa.model.language import LanguageModel
from rfa.model.layers import RobustMixer
from rfa.model.mixing import ModeNorm
from rfa.model.recurrence.slots_reference import SlotParameters
from rfa.runtime.text.config import EXTENSIONS, LanguageModelConfig, Mode

NORM_EPS = 1e-6


@dataclass(frozen=True)
class Readout:
    """Weights of a block that may differ between the modes. Matrices are `[out, in]` in the dtype of the decoder, and
    norms are in float32."""

    mixer_norm: Tensor
    mix_in: Tensor  # query, key, value, gates and, if present, output gates: [3 · H · 2D + 2 · H · S (+ H), d]
    mix_out: Tensor
    feed_forward_norm: Tensor

    @classmethod
    def of(cls, block: Block, mode: Mode, dtype: torch.dtype) -> Readout:
        mixer = cast(RobustMixer, block.mixer)
        inward = [mixer.query.of(mode), mixer.key.weight, mixer.value.weight]
        if mixer.config.n_slots:
            inward.append(mixer.gates.weight)
        if mixer.config.output_gate:
            inward.append(mixer.output_gate.weight)
        return cls(
            mixer_norm=cast(ModeNorm, block.mixer_norm).of(mode),
            mix_in=torch.cat(inward).to(dtype),
            mix_out=mixer.output.of(mode).to(dtype),
            feed_forward_norm=cast(ModeNorm, block.feed_forward_norm).of(mode),
        )


@dataclass(frozen=True)
class LayerSlots:
    """Constants of the memory slots of a block."""

    gate_bias: Tensor  # [2 · H · S]
    parameters: SlotParameters
    own_process: Tensor  # [H, S]


@dataclass(frozen=True)
class Layer:
    """Constants of one block. The dtypes are those of `Readout`."""

    readout: Readout
    output_gate_bias: Tensor | None  # [H]
    up: Tensor
    down: Tensor
    dynamics: Dynamics
    slots: LayerSlots | None

    @property
    def required_slots(self) -> LayerSlots:
        """Constants of the memory slots of the block, in contrast to `slots`, which may be None.

        Raises:
            ValueError: If the model has no memory slots.
        """
        if self.slots is None:
            raise ValueError("the model has no memory slots, so it supports only the attention mode")
        return self.slots

    @classmethod
    def of(cls, block: Block, mode: Mode, dtype: torch.dtype) -> Layer:
        mixer, feed_forward = cast(RobustMixer, block.mixer), block.feed_forward
        dynamics, slots = mixer.dynamics(), None
        if mixer.config.n_slots:
            slots = LayerSlots(mixer.gates.bias, mixer.slot_parameters(dynamics), mixer.own_process(1))
        return cls(
            readout=Readout.of(block, mode, dtype),
            output_gate_bias=mixer.output_gate.bias if mixer.config.output_gate else None,
            up=feed_forward.up.weight.to(dtype),
            down=feed_forward.down.weight.to(dtype),
            dynamics=dynamics,
            slots=slots,
        )


@dataclass(frozen=True)
class Stack:
    """The blocks and the final norm of a model, with the weights of one mode."""

    layers: list[Layer]
    norm: Tensor

    @classmethod
    def of(cls, model: LanguageModel, mode: Mode, dtype: torch.dtype) -> Stack:
        layers = [Layer.of(cast(Block, block), mode, dtype) for block in model.blocks]
        return cls(layers, model.norm.of(mode).detach())

    def with_readout(self, model: LanguageModel, mode: Mode, dtype: torch.dtype) -> Stack:
        """Return the same blocks for another mode, whose weights replace those that differ between the modes."""
        pairs = zip(self.layers, model.blocks, strict=True)
        layers = [replace(layer, readout=Readout.of(cast(Block, block), mode, dtype)) for layer, block in pairs]
        return Stack(layers, model.norm.of(mode).detach())


def check_decodable(config: LanguageModelConfig) -> None:
    """Check that the mixer of a model is "rfa" without extensions, and that the model has no window.

    Raises:
        ValueError: If the configuration is not supported.
    """
    if config.mixer != "rfa":
        raise ValueError(f"a decoder requires mixer 'rfa', got {config.mixer!r}")
    for name, whole in EXTENSIONS.items():
        if getattr(config, name) != whole:
            raise ValueError(f"a decoder requires {name} {whole!r}, got {getattr(config, name)!r}")
    if config.window:
        raise ValueError(f"a decoder requires window 0, got {config.window}")
