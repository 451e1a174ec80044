"""Language model with an embedding, blocks and a tied vocabulary head. It runs as attention or as a recurrence."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from rfa.model.blocks import Block
from rfa.model.layers import LayerState, RobustMixer
from rfa.model.mixing import MixerOutput, ModeNorm
from rfa.model.recurrence.slots import SlotImpl
from rfa.model.two_modes import TwoModeNetwork
from rfa.runtime.text.config import LanguageModelConfig, Mode

# Standard deviation of the initial embedding. It is small, because with a large tied embedding the model would predict
# the current token with certainty.
EMBEDDING_STD = 0.02


class LanguageOutput(NamedTuple):
    """Output of the language model for a sequence.

    Attributes:
        logits: Logits of the next token at each position, `[B, N, V]`.
        log_precision: Log evidence of the last layer, averaged over heads, `[B, N]`.
    """

    logits: Tensor
    log_precision: Tensor


class StepOutput(NamedTuple):
    """Output of the language model for one token.

    Attributes:
        logits: Logits of the next token, `[B, V]`.
        log_precision: Log evidence of the last layer, averaged over heads, `[B]`.
        latent: Estimate or sample of the last layer, `[B, H, 2D]`.
    """

    logits: Tensor
    log_precision: Tensor
    latent: Tensor


class SlotState(NamedTuple):
    """State of B streams in float32.

    Attributes:
        means: Means of the memory slots, `[B, L, H, S, 4D]`.
        precisions: Precisions of the memory slots, `[B, L, H, S]`.
        position: Position of the next token, `[B]` int64.
    """

    means: Tensor
    precisions: Tensor
    position: Tensor


class WindowState(NamedTuple):
    """State of B streams of a model with a window.

    Attributes:
        means, precisions, position: See `SlotState`.
        ring: Tokens in the window, `[B, L, W, H, 4D + 2S]`, with the oldest first.
    """

    means: Tensor
    precisions: Tensor
    position: Tensor
    ring: Tensor


State = SlotState | WindowState


class Cache(NamedTuple):
    """Keys and values of attention mode, `[B, L, H, C, 2D]`, in the rotating frame. The first `position` `[B]` rows are
    valid.

    Values are not rotated if the model does not rotate them.
    """

    keys: Tensor
    values: Tensor
    position: Tensor


class LanguageModel(TwoModeNetwork):
    """Language model that runs as attention or as a recurrence with the same weights."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config.modes[-1])
        self.config = config
        self._passes = config.inner
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = ModeNorm(config.d_model, is_own=config.own_readout)

    def check_mode(self, mode: Mode) -> None:
        if mode not in self.config.modes:
            raise ValueError(f"a {self.config.mixer} model supports the modes {self.config.modes}, got {mode!r}")

    @property
    def passes(self) -> int:
        """Number of reweighting passes K of the memory slots, from 1 to `config.inner`, which is the default."""
        return self._passes

    @passes.setter
    def passes(self, passes: int) -> None:
        if not 1 <= passes <= self.config.inner:
            raise ValueError(f"passes must be between 1 and {self.config.inner}, got {passes}")
        self._passes = passes
        for block in self._layers():
            if isinstance(block.mixer, RobustMixer):
                block.mixer.passes = passes

    def compile_attention(self) -> None:
        """Compile the attention of the reference implementation for training, which halves its time on a CPU."""
        for block in self._layers():
            if isinstance(block.mixer, RobustMixer):
                block.mixer.compile_attention()

    def forward(self, tokens: Tensor, *, with_precision: bool = True) -> LanguageOutput:
        """Return the logits of the next token at every position, in the current mode.

        Args:
            tokens: Token ids, `[B, N]`.
            with_precision: Whether to compute the evidence in attention mode.
        """
        if self._mode == "recurrent":
            state = self.init_state(tokens.shape[0])
            hidden, mixed, _ = self._scan(tokens, state)
        else:
            hidden = self._embed(tokens)
            for block in self._layers():
                mixed = block.mixer.attention(block.mixer_norm(hidden), with_precision=with_precision)
                hidden = block.finish(hidden, mixed.out, "attention")
        return LanguageOutput(self._logits(hidden, self._mode), mixed.log_precision.mean(-1))

    def init_state(self, batch: int) -> State:
        """Return the state of `batch` streams before their first token."""
        pairs = [mixer.initial_state() for mixer in self._slot_mixers()]
        means = torch.stack([means for means, _ in pairs])
        precisions = torch.stack([precisions for _, precisions in pairs])
        slots = SlotState(
            means.expand(batch, *means.shape),
            precisions.expand(batch, *precisions.shape),
            torch.zeros(batch, dtype=torch.int64, device=means.device),
        )
        if not self.config.window:
            return slots
        ring = torch.stack([mixer.initial_ring() for mixer in self._slot_mixers()])
        return WindowState(*slots, ring.expand(batch, *ring.shape))

    def step(
        self, token: Tensor, state: State, noise: Tensor | None = None, passes: Tensor | None = None
    ) -> tuple[StepOutput, State]:
        """Process one token of every stream, and return the output and the state after the token.

        Args:
            token: Token ids, `[B]`.
            state: State before the token.
            noise: Scaled standard normal numbers for the sample of the latent, `[B, H, 2D]`. If None, the latent is the
                mean.
            passes: Number of reweighting passes of each stream, `[B]` int64 from 1 to `self.passes`, which is the
                default. It must be None for a model with a window.
        """
        x = self._embed(token)
        layers = []
        for i, (block, mixer) in enumerate(zip(self._layers(), self._slot_mixers(), strict=True)):
            before = self._layer_state(state, i)
            normed = block.mixer_norm(x, "recurrent")
            mixed, layer = mixer.step(normed, state.position, before, self._last(i, noise), passes)
            x = block.finish(x, mixed.out, "recurrent")
            layers.append(layer)
        return self._step_output(x, mixed, "recurrent"), _advanced(state, layers, 1)

    def prefill(self, tokens: Tensor, state: State, *, impl: SlotImpl = "auto") -> tuple[StepOutput, State]:
        """Process N tokens `[B, N]` at once and return the output of the last token. Results equal those of N steps."""
        x, mixed, after = self._scan(tokens, state, impl=impl)
        last = MixerOutput(mixed.out[:, -1], mixed.log_precision[:, -1], mixed.latent[:, -1])
        return self._step_output(x[:, -1], last, "recurrent"), after

    def init_cache(self, batch: int, capacity: int) -> Cache:
        """Return an empty cache for `capacity` tokens of `batch` streams."""
        config = self.config
        shape = (batch, config.n_layers, config.n_heads, capacity, 2 * config.head_dim)
        keys = torch.zeros(shape, device=self.embedding.weight.device)
        return Cache(keys, torch.zeros_like(keys), torch.zeros(batch, dtype=torch.int64, device=keys.device))

    def extend(self, tokens: Tensor, cache: Cache, noise: Tensor | None = None) -> tuple[StepOutput, Tensor, Tensor]:
        """Process n new tokens in attention mode, with a cache.

        Args:
            tokens: Token ids, `[B, n]`.
            cache: Keys and values of the earlier tokens.
            noise: Scaled standard normal numbers for the sample of the last token's latent, `[B, H, 2D]`.

        Returns:
            The output of the last token, and the new rows of keys and values `[B, L, H, n, 2D]`. The caller writes them
            at `cache.position`.
        """
        x = self._embed(tokens)
        keys, values = [], []
        for i, block in enumerate(self._layers()):
            mixed, k, v = block.mixer.extend(
                block.mixer_norm(x), cache.position, cache.keys[:, i], cache.values[:, i], self._last(i, noise)
            )
            x = block.finish(x, mixed.out, "attention")
            keys.append(k)
            values.append(v)
        last = MixerOutput(mixed.out[:, -1], mixed.log_precision[:, -1], mixed.latent[:, -1])
        output = self._step_output(x[:, -1], last, "attention")
        return output, torch.stack(keys, 1), torch.stack(values, 1)

    def _embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(tokens)
        return embedded * math.sqrt(self.config.d_model)

    def _logits(self, x: Tensor, mode: Mode) -> Tensor:
        return torch.nn.functional.linear(self.norm(x, mode), self.embedding.weight)

    def _step_output(self, x: Tensor, mixed: MixerOutput, mode: Mode) -> StepOutput:
        return StepOutput(self._logits(x, mode), mixed.log_precision.mean(-1), mixed.latent)

    def _last(self, layer: int, noise: Tensor | None) -> Tensor | None:
        """Return `noise` for the last layer, whose latent is sampled, and None for the other layers."""
        return noise if layer == self.config.n_layers - 1 else None

    def _layers(self) -> list[Block]:
        return [cast(Block, block) for block in self.blocks]

    def _slot_mixers(self) -> list[RobustMixer]:
        if "recurrent" not in self.config.modes:
            raise ValueError(f"a {self.config.mixer} model without memory slots does not support the recurrent mode")
        return [cast(RobustMixer, block.mixer) for block in self._layers()]

    def _scan(self, tokens: Tensor, state: State, *, impl: SlotImpl = "auto") -> tuple[Tensor, MixerOutput, State]:
        x = self._embed(tokens)
        positions = state.position[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        layers = []
        for i, (block, mixer) in enumerate(zip(self._layers(), self._slot_mixers(), strict=True)):
            normed = block.mixer_norm(x, "recurrent")
            mixed, layer = mixer.recurrent(normed, positions, self._layer_state(state, i), impl=impl)
            x = block.finish(x, mixed.out, "recurrent")
            layers.append(layer)
        return x, mixed, _advanced(state, layers, tokens.shape[1])

    def _layer_state(self, state: State, layer: int) -> LayerState:
        size = state.ring.shape[2] if isinstance(state, WindowState) else 0
        if size != self.config.window:
            raise ValueError(
                f"the model has a window of {self.config.window} tokens, but the ring in the state has {size}"
            )
        ring = state.ring[:, layer] if isinstance(state, WindowState) else None
        return LayerState(state.means[:, layer], state.precisions[:, layer], ring)


def _advanced(state: State, layers: list[LayerState], tokens: int) -> State:
    """Return the state after `tokens` more tokens. `layers` contains the states of the layers."""
    parts: dict[str, Tensor] = {
        "means": torch.stack([layer.means for layer in layers], 1),
        "precisions": torch.stack([layer.precisions for layer in layers], 1),
        "position": state.position + tokens,
    }
    rings = [layer.ring for layer in layers if layer.ring is not None]
    if rings:
        parts["ring"] = torch.stack(rings, 1)
    return state._replace(**parts)
