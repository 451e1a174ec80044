"""Start the training of a series network from the weights of a narrower one, so that both compute the same outputs."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rfa.model.series.network import SeriesNetwork
from rfa.runtime.series.config import SeriesConfig

# Widths that may be larger than those of the narrower network.
WIDTHS = ("d_model", "mlp_ratio", "embedding_width")
# Matrices that write to the residual stream. Their new entries are zero, so that new units change nothing at first.
WRITERS = ("embedding.2.", ".mixer.output.", ".feed_forward.down.")
NORM = "norm."


def is_wider(config: SeriesConfig, earlier: SeriesConfig) -> bool:
    """Return whether a width of a configuration is larger than that of an earlier one, and none is smaller."""
    widths, before = ([getattr(one, name) for name in WIDTHS] for one in (config, earlier))
    return widths != before and all(new >= old for new, old in zip(widths, before, strict=True))


@torch.no_grad()
def widened(network: SeriesNetwork, config: SeriesConfig) -> SeriesNetwork:
    """Return a network with a configuration whose widths are at least those of `network`, and the same outputs.

    New units read the residual stream with random weights of the usual size, and write to it with weights 0. The new
    entries of the residual stream are therefore 0 at first, and the gains of norms are smaller by √(d / d_new), because
    a norm divides by the root of the mean square of all entries.

    Args:
        network: Network with the initial weights.
        config: Configuration with widths of at least the same size. Other fields must be equal.

    Raises:
        ValueError: If a width is smaller, or another field differs.
    """
    earlier = network.config
    grown = replace(earlier, **{name: getattr(config, name) for name in WIDTHS})
    hidden = (grown.mlp_ratio * grown.d_model, earlier.mlp_ratio * earlier.d_model)
    smaller = [name for name in WIDTHS if name != "mlp_ratio" and getattr(config, name) < getattr(earlier, name)]
    if grown != config or smaller or hidden[0] < hidden[1]:
        raise ValueError(
            f"a series network with {config} cannot start from one with {earlier}; only {', '.join(WIDTHS)} may be "
            "larger, and nothing else may differ"
        )
    found = SeriesNetwork(config).to(network.head.lead_table.device)
    old = network.state_dict()
    for name, tensor in found.state_dict().items():
        _fill(name, tensor, old[name], math.sqrt(earlier.d_model / config.d_model))
    return found


def _fill(name: str, tensor: Tensor, old: Tensor, gain: float) -> None:
    """Set a new parameter from the one with the same name in the narrower network."""
    if tensor.shape == old.shape:
        tensor.copy_(old)
        return
    if NORM in name:
        tensor.fill_(float(old.mean()) * gain)
        old = old * gain
    elif tensor.ndim == 1 or any(part in f".{name}" for part in WRITERS):
        tensor.zero_()
    else:
        tensor.normal_(std=float(old.std()))
    tensor[tuple(slice(size) for size in old.shape)] = old
