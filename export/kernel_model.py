"""A language model whose slots and attention are launched as the kernels of a GPU, on tensors of a CPU.

The launches are for others to take (`rfa.model.kernel_launches`): a recorder learns from them what serving launches, an
emulator executes them. Everything around them is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.attention.launch import launch
from rfa.model.attention.reference import AttentionResult
from rfa.model.attention.triton import stack_heads
from rfa.model.attention.triton_forward import forward
from rfa.model.attention.validation import FUSED_WIDTHS
from rfa.model.config import LanguageModelConfig
from rfa.model.dynamics import Dynamics
from rfa.model.language import LanguageModel, StepOutput
from rfa.model.mixing import MixerOutput
from rfa.model.recurrence.slots_reference import SlotInputs, SlotParameters, SlotReadout
from rfa.model.recurrence.triton import MAX_SLOTS, MAX_WIDTH, slot_scan_triton

# What attention is served in on a GPU.
ATTENTION_DTYPE = torch.bfloat16
_Slots = Callable[[SlotInputs, Tensor, Tensor, SlotParameters], tuple[SlotReadout, Tensor, Tensor]]


class Projected(NamedTuple):
    """q, k, v `[B, N, H, 2D]` of a layer in the rotating frame, rounded as the kernels take them; and its dynamics."""

    q: Tensor
    k: Tensor
    v: Tensor
    dynamics: Dynamics


def has_slot_kernels(config: LanguageModelConfig) -> bool:
    """Whether the slots of a model run as kernels."""
    is_held = 0 < config.n_slots <= MAX_SLOTS and 2 * config.head_dim <= MAX_WIDTH
    return is_held and config.inner == 1 and config.innovation == "key" and not config.window


def has_attention_kernels(config: LanguageModelConfig) -> bool:
    """Whether its attention does: RFA whole, not an ablation of it."""
    narrowest, widest = FUSED_WIDTHS
    is_whole = config.prior == "lyapunov" and config.noise == "learned" and config.rotate_values
    return is_whole and not config.unit_norm and not config.window and narrowest <= 2 * config.head_dim <= widest


class KernelModel:
    """The passes of a model that serving on a GPU runs.

    Args:
        model: float32, on the CPU.
        architecture: whose launch table is used: 80, 90.
    """

    def __init__(self, model: LanguageModel, architecture: int) -> None:
        self.model = model
        self._capability = divmod(architecture, 10)

    def prefill(
        self, tokens: Tensor, position: Tensor, means: Tensor, precisions: Tensor
    ) -> tuple[StepOutput, Tensor, Tensor]:
        """Tokens `[B, N]` from `position` `[B]`, from slots `[B, L, H, S, 4D]` and `[B, L, H, S]` to slots."""
        positions = position[:, None] + torch.arange(tokens.shape[1])
        x, mixed, *slots = self._recurrent(tokens, positions, means, precisions, None, slot_scan_triton)
        last = MixerOutput(*(part[:, -1] for part in mixed))
        return self.model._step_output(x[:, -1], last, "recurrent"), slots[0], slots[1]

    def step(
        self, token: Tensor, position: Tensor, noise: Tensor, means: Tensor, precisions: Tensor
    ) -> tuple[StepOutput, Tensor, Tensor]:
        """One token `[B]` of every stream; noise `[B, H, 2D]`."""
        x, mixed, *slots = self._recurrent(token, position, means, precisions, noise, _step)
        return self.model._step_output(x, mixed, "recurrent"), slots[0], slots[1]

    def _recurrent(
        self, tokens: Tensor, positions: Tensor, means: Tensor, precisions: Tensor, noise: Tensor | None, run: _Slots
    ) -> tuple[Tensor, MixerOutput, Tensor, Tensor]:
        model, after = self.model, []
        x = model._embed(tokens)
        for i, (block, mixer) in enumerate(zip(model._layers(), model._slot_mixers(), strict=True)):
            normed, dynamics, phase = block.mixer_norm(x, "recurrent"), mixer.dynamics(), mixer.phase(positions)
            inputs = mixer.slot_inputs(normed, mixer.rotated(normed, phase, "recurrent"), dynamics)
            readout, *slots = run(inputs, means[:, i], precisions[:, i], mixer.slot_parameters(dynamics))
            after.append(slots)
            sample = model._last(i, noise)
            mixed = mixer.finish(readout.out, normed, phase, readout.precision, sample, dynamics.gamma2, "recurrent")
            x = block.finish(x, mixed.out, "recurrent")
        new_means, new_precisions = (torch.stack(parts, 1) for parts in zip(*after, strict=True))
        return x, mixed, new_means, new_precisions

    def projected(self, tokens: Tensor) -> list[Projected]:
        """What attention gets in each layer, for tokens `[B, N]` from position 0 on; the model's own attention gives
        the layers' inputs."""
        model, found = self.model, []
        x = model._embed(tokens)
        for block, mixer in zip(model._layers(), model._robust_mixers(), strict=True):
            normed, phase = block.mixer_norm(x, "attention"), mixer.phase(torch.arange(tokens.shape[1]))
            q, k, v = (part.to(ATTENTION_DTYPE) for part in mixer.rotated(normed, phase, "attention"))
            found.append(Projected(q, k, v, mixer.dynamics()))
            x = block.finish(x, mixer.attention(normed, with_precision=False, impl="reference").out, "attention")
        return found

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dynamics: Dynamics,
        *,
        query_starts: Tensor | None = None,
        key_starts: Tensor | None = None,
    ) -> AttentionResult:
        """Queries `[B, n, H, 2D]` over keys `[B, M, H, 2D]` whose last n are their own; starts as of
        `fused_attention`."""
        longest = q.shape[1] if query_starts is None else int(query_starts.diff().max())
        blocks = launch("forward_precision", self._capability, q.shape[-1], q.dtype)
        is_gaussian = self.model.config.kernel == "gaussian"
        places = (None, None, query_starts, key_starts)
        return AttentionResult(
            *forward(q, k, v, stack_heads(dynamics), *places, longest, is_gaussian, True, blocks=blocks)
        )


def _step(
    token: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters
) -> tuple[SlotReadout, Tensor, Tensor]:
    # As serving has them: the last of the layers of a pool, which has more rows than the streams, and the rows behind
    # other numbers of the streams.
    pool = [part.new_zeros(2, len(part) + 1, *part.shape[1:])[-1] for part in (means, precisions)]
    for rows_of, part in zip(pool, (means, precisions), strict=True):
        rows_of[1:] = part
    rows = torch.arange(1, len(means) + 1).expand(4, -1).contiguous()[-1]
    readout = SlotReadout(*torch.ops.rfa.slot_step_pooled(*token, *pool, rows, *parameters))
    return readout, pool[0][1:], pool[1][1:]
