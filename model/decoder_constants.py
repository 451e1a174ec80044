"""Compute the constrained parameters of a language model for the compiled decoder (`decoder_numba`)."""

from __future__ import annotations

import torch
from torch import Tensor

from rfa.model.decoder_layers import NORM_EPS, Stack, check_decodable
from rfa.model.language import LanguageModel
from rfa.model.layers import GATE_RANGE, PROCESS_GATE_SCALE
from rfa.model.recurrence.slots_reference import SlotParameters


def decoder_constants(model: LanguageModel) -> dict[str, Tensor]:
    """Return a mapping from names to constants of the compiled decoder.

    nu, kappa, weight_exponent, residual_noise, gamma2, tau, delta and eta2 are `[L, H]`, decay and own_process are
    `[L, H, S]`, and omega is `[H, D]` float64. The gate range, the scale of the process gate and the epsilon of the
    norms are scalars.

    Raises:
        ValueError: If the compiled decoder does not support the model.
    """
    check_decodable(model.config)
    if model.config.innovation != "key":
        raise ValueError(f"the compiled decoder requires innovation 'key', got {model.config.innovation!r}")
    with torch.no_grad():
        layers = Stack.of(model, "recurrent", torch.float32).layers
        constants = [layer.slots for layer in layers if layer.slots is not None]
    if not constants:
        raise ValueError("the compiled decoder requires memory slots, but the model has no memory slots")
    slots = {
        name: torch.stack([getattr(part.parameters, name) for part in constants]) for name in SlotParameters._fields
    }
    fixed = {"gate_lowest": GATE_RANGE[0], "gate_highest": GATE_RANGE[1]}
    fixed |= {"process_gate_scale": PROCESS_GATE_SCALE, "norm_eps": NORM_EPS}
    return {
        **slots,
        "eta2": torch.stack([layer.dynamics.eta2 for layer in layers]),
        "own_process": torch.stack([part.own_process for part in constants]),
        "omega": layers[0].dynamics.omega,
        **{name: torch.tensor(value, dtype=torch.float32) for name, value in fixed.items()},
    }
