"""What a decoder forms once from raw parameters, told to the one that knows no torch (`decoder_numba`)."""

from __future__ import annotations

import torch
from torch import Tensor

from rfa.model.decoder import NORM_EPS, Stack, check_decodable
from rfa.model.language import LanguageModel
from rfa.model.layers import GATE_RANGE, PROCESS_GATE_SCALE
from rfa.model.recurrence.slots_reference import SlotParameters


def decoder_constants(model: LanguageModel) -> dict[str, Tensor]:
    """What a decoder forms once from raw parameters, for the one that knows no torch (`decoder_numba`).

    nu, kappa, weight_exponent, residual_noise, gamma2, tau, delta, eta2 `[L, H]`; decay, own_process `[L, H, S]`; omega
    `[H, D]` float64; and the numbers that the architecture fixes: the range of the gates, the scale of one, and the
    floor of the norms.

    Raises:
        ValueError: it has no slots that this one runs.
    """
    check_decodable(model.config)
    if model.config.innovation != "key":
        raise ValueError(f"the compiled decoder knows the innovation of the key, got {model.config.innovation!r}")
    with torch.no_grad():
        layers = Stack.of(model, "recurrent", torch.float32).layers
        held = [layer.slots for layer in layers if layer.slots is not None]
    if not held:
        raise ValueError("the model has no slots, whose constants these are")
    slots = {name: torch.stack([getattr(part.parameters, name) for part in held]) for name in SlotParameters._fields}
    fixed = {"gate_lowest": GATE_RANGE[0], "gate_highest": GATE_RANGE[1]}
    fixed |= {"process_gate_scale": PROCESS_GATE_SCALE, "norm_eps": NORM_EPS}
    return {
        **slots,
        "eta2": torch.stack([layer.dynamics.eta2 for layer in layers]),
        "own_process": torch.stack([part.own_process for part in held]),
        "omega": layers[0].dynamics.omega,
        **{name: torch.tensor(value, dtype=torch.float32) for name, value in fixed.items()},
    }
