"""ONNX graphs of a language model. A model without memory slots has only the graph `attention`.

    step       processes one token of every stream in recurrent mode, from state to state
    prefill    processes many tokens in recurrent mode; only the update of the slots is a Scan node, the rest is batched
    attention  processes new tokens with a cache of keys and values; returns the new rows, which the caller stores

README.md in this directory describes the interfaces. The graphs compute phases in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from tqdm import tqdm

from rfa.export.onnx_graphs import export_graph, name_inputs
from rfa.model.attention.reference import windowed_attention
from rfa.model.blocks import Block
from rfa.model.language import Cache, LanguageModel, SlotState, State, StepOutput
from rfa.model.layers import RobustMixer
from rfa.model.mixing import MixerOutput
from rfa.model.recurrence.slots_reference import SlotInputs, SlotOptions, SlotReadout, slot_read, slot_step
from rfa.model.recurrence.window import joined
from rfa.runtime.bundle.bundle import Graph
from rfa.runtime.text.config import LanguageModelConfig

# Mixers that bundles support.
BUNDLED = ("rfa", "softmax", "afa", "radial_tangential")
ATTENTION_OUTPUTS = ("logits", "log_precision", "latent", "new_keys", "new_values")
# Sizes while tracing. All are different and none is 1, because the tracer otherwise treats a dimension as constant.
TRACE_BATCH, TRACE_LENGTH, TRACE_CAPACITY = 2, 3, 5


class _ModelGraph(nn.Module):
    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model


class _RecurrentGraph(_ModelGraph):
    """Base class of recurrent graphs with variadic inputs. These inputs are the tensors of the state. If the model has
    K > 1, the number of passes of each row precedes them."""

    def _split(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, _State]:
        """Split the variadic inputs into the number of passes and the state. The number of passes is None if it is not
        an input."""
        if self.model.config.takes_passes:
            return inputs[0], _State(*inputs[1:])
        return None, _State(*inputs)


class StepGraph(_RecurrentGraph):
    """Wraps `LanguageModel.step`, so that the inputs and outputs are a flat list of tensors.

    For a model with a window, it computes the same as `PrefillGraph` for one token.
    """

    def forward(self, token: Tensor, position: Tensor, noise: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        passes, before = self._split(rest)
        if before.ring is not None:
            tokens = _Tokens(token[:, None], torch.ones_like(token), position, passes)
            return _read_tokens(self.model, tokens, before, noise)
        output, after = self.model.step(token, SlotState(before.means, before.precisions, position), noise, passes)
        return (*output, after.means, after.precisions)


class PrefillGraph(_RecurrentGraph):
    """Wraps `LanguageModel.prefill` for rows of different lengths.

    Only the update of the slots is a Scan node over tokens. The readout is one batched operation. The state of a row is
    the state after its last valid token, bit for bit, so padding has no effect.
    """

    def forward(self, tokens: Tensor, length: Tensor, position: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        passes, before = self._split(rest)
        return _read_tokens(self.model, _Tokens(tokens, length, position, passes), before, None)


class AttentionGraph(_ModelGraph):
    """Wraps `LanguageModel.extend`, so that the inputs and outputs are a flat list of tensors."""

    def forward(
        self, tokens: Tensor, position: Tensor, keys: Tensor, values: Tensor, noise: Tensor
    ) -> tuple[Tensor, ...]:
        output, new_keys, new_values = self.model.extend(tokens, Cache(keys, values, position), noise)
        return (*output, new_keys, new_values)


class _State(NamedTuple):
    """Memory slots and ring of a model `[B, L, …]` or of one layer `[B, …]`. `ring` is None for a model without a
    window."""

    means: Tensor
    precisions: Tensor
    ring: Tensor | None = None

    def layer(self, layer: int) -> _State:
        """Return the state of one layer."""
        ring = None if self.ring is None else self.ring[:, layer]
        return _State(self.means[:, layer], self.precisions[:, layer], ring)


class _Tokens(NamedTuple):
    """Tokens of B rows with padding.

    Attributes:
        ids: Tokens, `[B, N]`.
        length: Number of valid tokens of each row, `[B]`.
        position: Position of the first token of each row, `[B]`.
        passes: Number of passes of each row, `[B]`. None if the model has only one.
    """

    ids: Tensor
    length: Tensor
    position: Tensor
    passes: Tensor | None


def _read_tokens(model: LanguageModel, tokens: _Tokens, state: _State, noise: Tensor | None) -> tuple[Tensor, ...]:
    """Return the output of the last valid token of each row, and the state after that token."""
    ids, length, position, passes = tokens
    rows, last = torch.arange(ids.shape[0]), length - 1
    positions = position[:, None] + torch.arange(ids.shape[1])
    x = model._embed(ids)
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    after: list[list[Tensor]] = []
    for i, block in enumerate(blocks):
        sample = noise[:, None] if noise is not None and block is blocks[-1] else None
        mixed, m, p, seen = _scan_layer(block, x, positions, state.layer(i), sample, passes)
        x = block.finish(x, mixed.out, "recurrent")
        parts = [m[rows, last], p[rows, last]]
        if seen is not None:
            # The W tokens up to the last valid one. If there are fewer new tokens, some come from the old ring.
            parts.append(seen[rows[:, None], length[:, None] + torch.arange(model.config.window)])
        after.append(parts)
    final = MixerOutput(*(part[rows, last] for part in mixed))
    output: StepOutput = model._step_output(x[rows, last], final, "recurrent")
    return (*output, *(torch.stack(parts, 1) for parts in zip(*after, strict=True)))


def _scan_layer(
    block: Block, x: Tensor, positions: Tensor, state: _State, noise: Tensor | None, passes: Tensor | None
) -> tuple[MixerOutput, Tensor, Tensor, Tensor | None]:
    """Apply the mixer of one layer to `[B, N, d]`.

    Returns:
        The output, and the means and the precisions of the memory slots after every token `[B, N, H, S, …]`. For a
        model with a window, the last value is the ring followed by the new tokens `[B, W + N, H, 4D + 2S]`. Otherwise,
        it is None.
    """
    mixer, x = block.mixer, block.mixer_norm(x, "recurrent")
    if not isinstance(mixer, RobustMixer):
        raise ValueError(f"a {mixer.config.mixer} model has no recurrent mode")
    dynamics = mixer.dynamics()
    phase = mixer.phase(positions)
    tokens = mixer.slot_inputs(x, mixer.rotated(x, phase, "recurrent"), dynamics)
    parameters, window = mixer.slot_parameters(dynamics), mixer.config.window
    entering, seen, lag = tokens, None, None
    if state.ring is not None:
        seen = torch.cat([state.ring, torch.cat(tokens[1:], dim=-1)], dim=1)
        width, slots = tokens.k.shape[-1], mixer.config.n_slots
        recent = SlotInputs(tokens.q, *seen.split([width, width, slots, slots], dim=-1))
        entering, lag = SlotInputs(tokens.q, *(part[:, :-window] for part in recent[1:])), mixer.slot_lag()

    def update(before: list[Tensor], token: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        # The exporter drops the readout, because it is not returned.
        _, m, p = slot_step(
            SlotInputs(*token),
            before[0],
            before[1],
            parameters,
            SlotOptions(mixer.config.inner, mixer.config.innovation, passes=passes),
        )
        return [m, p], [m.clone(), p.clone()]

    start = [part.clone(memory_format=torch.contiguous_format) for part in (state.means, state.precisions)]
    by_time = [part.transpose(0, 1).contiguous() for part in entering]
    _, (m, p) = scan(update, start, by_time, dim=0)
    m, p = m.transpose(0, 1), p.transpose(0, 1)
    flat = slot_read(tokens.q.flatten(0, 1), m.flatten(0, 1), p.flatten(0, 1), parameters, lag)
    readout = SlotReadout(*(part.unflatten(0, positions.shape) for part in flat))
    if seen is not None:
        is_token = recent.measurement[:, 1:, 0, 0] > 0
        near = windowed_attention(
            tokens.q, recent.k[:, 1:], recent.v[:, 1:], dynamics, window=window, is_token=is_token
        )
        readout = joined(readout, near)
    mixed = mixer.finish(readout.out, x, phase, readout.precision, dynamics.gamma2, mode="recurrent", noise=noise)
    return mixed, m, p, seen


Interface = tuple[dict[str, Tensor], tuple[str, ...], dict[str, dict[int, str]]]


def step_interface(model: LanguageModel) -> Interface:
    """Return the example inputs, output names and variable dimensions of the step graph."""
    state, config = model.init_state(TRACE_BATCH), model.config
    inputs = {
        "token": torch.zeros(TRACE_BATCH, dtype=torch.int64),
        "position": state.position,
        "noise": torch.zeros(TRACE_BATCH, config.n_heads, 2 * config.head_dim),
        **_passes_input(model),
        **carried_state(state),
    }
    return inputs, _recurrent_outputs(state), {name: {0: "batch"} for name in inputs}


def prefill_interface(model: LanguageModel) -> Interface:
    """Return the example inputs, output names and variable dimensions of the prefill graph."""
    state = model.init_state(TRACE_BATCH)
    inputs = {
        "tokens": torch.zeros(TRACE_BATCH, TRACE_LENGTH, dtype=torch.int64),
        "length": torch.full((TRACE_BATCH,), TRACE_LENGTH),
        "position": state.position,
        **_passes_input(model),
        **carried_state(state),
    }
    dynamic = {name: {0: "batch"} for name in inputs}
    dynamic["tokens"][1] = "length"
    return inputs, _recurrent_outputs(state), dynamic


def _passes_input(model: LanguageModel) -> dict[str, Tensor]:
    """Return an example input with the number of passes of each row. The result is empty if the model has K = 1."""
    return {"passes": torch.full((TRACE_BATCH,), model.config.inner)} if model.config.takes_passes else {}


def carried_state(state: State) -> dict[str, Tensor]:
    """Return the tensors of a state in the order in which a recurrent graph reads and returns them. The position is not
    included."""
    return {name: part.contiguous() for name, part in state._asdict().items() if name != "position"}


def _recurrent_outputs(state: State) -> tuple[str, ...]:
    return (*StepOutput._fields, *(f"next_{name}" for name in carried_state(state)))


def attention_interface(model: LanguageModel) -> Interface:
    """Return the example inputs, output names and variable dimensions of the attention graph."""
    cache, config = model.init_cache(TRACE_BATCH, TRACE_CAPACITY), model.config
    inputs = {
        "tokens": torch.zeros(TRACE_BATCH, TRACE_LENGTH, dtype=torch.int64),
        "position": cache.position,
        "keys": cache.keys,
        "values": cache.values,
        "noise": torch.zeros(TRACE_BATCH, config.n_heads, 2 * config.head_dim),
    }
    dynamic = {name: {0: "batch"} for name in inputs}
    dynamic["tokens"][1] = "length"
    dynamic["keys"][3] = dynamic["values"][3] = "capacity"
    return inputs, ATTENTION_OUTPUTS, dynamic


def refusal(config: LanguageModelConfig) -> str | None:
    """Return the reason why a model cannot be exported, or None if it can be exported."""
    if config.mixer not in BUNDLED:
        return f"the mixer {config.mixer!r} is only used for comparisons in the quality table"
    return None


def language_graphs(model: LanguageModel) -> dict[str, Graph]:
    """Return a mapping from names to exported graphs of a model: `attention` and, if the model has memory slots, `step`
    and `prefill`.

    Raises:
        ValueError: If the mixer is not one of `BUNDLED`.
    """
    reason = refusal(model.config)
    if reason is not None:
        raise ValueError(f"this model cannot be exported: {reason}")
    model = model.eval().requires_grad_(False)
    parts: dict[str, tuple[nn.Module, Interface]] = {"attention": (AttentionGraph(model), attention_interface(model))}
    if "recurrent" in model.config.modes:
        parts["step"] = StepGraph(model), step_interface(model)
        parts["prefill"] = PrefillGraph(model), prefill_interface(model)
    graphs = {}
    for name, (module, (inputs, outputs, dynamic)) in tqdm(parts.items(), desc="export", unit="graph", leave=False):
        name_inputs(module, inputs)
        graphs[name] = export_graph(module, inputs, outputs, dynamic=dynamic, prefix="model.")
    return graphs
