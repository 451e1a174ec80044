"""Start the training of a language model from the weights of a model with the same or fewer components."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from rfa.model.language import LanguageModel
from rfa.model.layers import OUTPUT_GATE_START

# Components that a model may have in addition to those of the model that it starts from.
ADDED = ("own_readout", "output_gate")
OWN = "recurrent_weight"


@torch.no_grad()
def start_from(model: LanguageModel, earlier: LanguageModel) -> None:
    """Copy the weights of `earlier` to `model`, so that both models compute the same outputs.

    Separate recurrent weights start as copies of the shared ones. If output gates are added, output projections are
    divided by the initial value of the gates. The number of reweighting passes may differ.

    Raises:
        ValueError: If the configurations differ in other fields than `ADDED` and `inner`, or `model` lacks a component
            of `earlier`.
    """
    for field in fields(model.config):
        new, old = getattr(model.config, field.name), getattr(earlier.config, field.name)
        if new != old and not (field.name in ADDED and new) and field.name != "inner":
            raise ValueError(f"a model with {field.name}={new!r} cannot start from a model with {field.name}={old!r}")
    weights = earlier.state_dict()
    for name, tensor in model.state_dict().items():
        if (found := _weight(weights, name)) is None:
            continue  # an added output gate keeps its initial weights
        is_scaled = model.config.output_gate and not earlier.config.output_gate and ".mixer.output." in name
        tensor.copy_(found / torch.sigmoid(torch.tensor(OUTPUT_GATE_START)) if is_scaled else found)


def _weight(weights: dict[str, Tensor], name: str) -> Tensor | None:
    return weights.get(name, weights.get(f"{name.removesuffix(OWN)}weight") if name.endswith(OWN) else None)
