"""Attention with one softmax over a window of the most recent tokens and the memory slots, which contain the earlier
tokens.

The ring contains the W most recent tokens, including that of the query. A token is added to the slots when it leaves
the ring. At token t, the slots therefore contain the tokens up to t - W (`slots_reference.py`) and are read at that
lag:

    slot s            mean E_l m, variance E_l² / p + q_l + gamma²,    E_l = e^{-mu_s W}, q_l = noise(mu_s, W)
    token at lag τ    mean E(τ) k, variance V(τ)                       as in attention, τ = 0 … W - 1

The softmax is over the S + W logits. The slots and the window are normalised separately, and log_norm gives their
weights. Before the first token, the ring contains W empty entries with measurement precision 0. They have no weight in
the window, and do not update the slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rfa.model.attention.reference import AttentionResult, banded_attention
from rfa.model.dynamics import Dynamics
from rfa.model.recurrence.slots import SlotImpl, slot_scan
from rfa.model.recurrence.slots_reference import SlotInputs, SlotLag, SlotParameters, SlotReadout
from rfa.runtime.text.config import Innovation


def ring_width(width: int, slots: int) -> int:
    """Return the number of real values per token and head in the ring, for key, value, measurement and process. `width`
    is 2D."""
    return 2 * width + 2 * slots


def empty_ring(window: int, process: Tensor, width: int) -> Tensor:
    """Return the ring before the first token, `[W, H, 4D + 2S]`. `process` `[H, S]` is the process noise of empty
    entries.
    """
    heads, slots = process.shape
    nothing = process.new_zeros(heads, 2 * width + slots)
    return torch.cat([nothing, process], dim=-1).expand(window, heads, ring_width(width, slots))


def window_scan(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, ring: Tensor, parameters: SlotParameters, dynamics: Dynamics,
    *, lag: SlotLag, inner: int = 1, innovation: Innovation = "key", impl: SlotImpl = "auto",
) -> tuple[SlotReadout, Tensor, Tensor, Tensor]:  # fmt: skip
    """Process a sequence with memory slots and a ring that contains the most recent tokens.

    Args:
        tokens: Inputs with leading dimensions `[B, N]` and measurement precision > 0.
        means, precisions: State of the slots.
        ring: Tokens in the window, `[B, W, H, 4D + 2S]`, with the oldest first. It is not modified.
        parameters: Parameters of the slots.
        dynamics: Dynamics of the heads.
        lag: Lag of W tokens between the slots and the query.
        inner, innovation, impl: See `slot_scan`.

    Returns:
        The readout of every token, and the slots and the ring after the last token.
    """
    length, width, slots = tokens.k.shape[1], tokens.k.shape[-1], precisions.shape[-1]
    window = ring.shape[1]
    seen = torch.cat([ring, torch.cat([tokens.k, tokens.v, tokens.measurement, tokens.process], dim=-1)], dim=1)
    k, v, measurement, process = seen.split([width, width, slots, slots], dim=-1)
    distant, means, precisions = slot_scan(
        SlotInputs(tokens.q, *(part[:, :length] for part in (k, v, measurement, process))),
        means,
        precisions,
        parameters,
        inner=inner,
        innovation=innovation,
        lag=lag,
        impl=impl,
    )
    is_token = measurement[:, 1:, 0, 0] > 0
    recent = banded_attention(tokens.q, k[:, 1:], v[:, 1:], dynamics, window=window, is_token=is_token)
    return joined(distant, recent), means, precisions, seen[:, length:]


def joined(distant: SlotReadout, recent: AttentionResult) -> SlotReadout:
    """Combine the softmax over the memory slots with the softmax over the recent tokens, and return the readout of both
    together."""
    share = torch.sigmoid(distant.log_norm - recent.log_norm)[..., None]
    return SlotReadout(
        recent.out + share * (distant.out - recent.out),
        torch.logaddexp(distant.log_norm, recent.log_norm),
        distant.precision + recent.precision,
    )
