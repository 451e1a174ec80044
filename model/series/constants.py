"""What the compiled series network needs beside its weights: constrained parameters and tables, formed once."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from rfa.model.decoder_numba import HEAD_CONSTANTS
from rfa.model.layers import GATE_RANGE, PROCESS_GATE_SCALE, Block, RobustMixer
from rfa.model.series.config import PATCH
from rfa.model.series.network import SeriesNetwork

NORM_EPS = 1e-6


@torch.no_grad()
def series_constants(model: SeriesNetwork) -> dict[str, np.ndarray]:
    """By name: head constants `[L, H]`, decay and own_process `[L, PATCH, H, S]` over 1 … PATCH cells, omega `[H, D]`,
    the slots before the first token, and scalars."""
    found: dict[str, list[np.ndarray]] = {}
    lags = torch.arange(1, PATCH + 1, dtype=torch.float32)[None] / PATCH
    for block in cast("list[Block]", model.blocks):
        mixer = cast(RobustMixer, block.mixer)
        dynamics = mixer.dynamics()
        parameters = mixer.slot_parameters(dynamics, lags)
        values = {**parameters._asdict(), "eta2": dynamics.eta2}
        means, precisions = mixer.initial_state()
        parts = {name: values[name] for name in HEAD_CONSTANTS}
        parts |= {"decay": parameters.decay[0], "own_process": mixer.own_process(lags[..., None, None])[0]}
        parts |= {"initial_means": means, "initial_precisions": precisions}
        for name, value in parts.items():
            found.setdefault(name, []).append(value.float().numpy())
    stacked = {name: np.stack(values) for name, values in found.items()}
    scalars = {
        "gate_lowest": GATE_RANGE[0], "gate_highest": GATE_RANGE[1], "process_gate_scale": PROCESS_GATE_SCALE,
        "norm_eps": NORM_EPS,
    }  # fmt: skip
    omega = cast(RobustMixer, cast("list[Block]", model.blocks)[0].mixer).dynamics.omega.numpy()
    return {**stacked, "omega": omega, **{name: np.array(value, np.float32) for name, value in scalars.items()}}
