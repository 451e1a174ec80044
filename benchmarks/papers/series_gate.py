"""`python -m rfa.benchmarks.papers.series_gate --runs DIR`: confidence gates (RFA C.4, AFA B.2) in the series network.

Small networks with and without a gate train for the same steps on the same synthetic series. Their loss is on fresh
series, of a seed that no training or validation uses. The values of a gate are given at quantiles of its evidence.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from rfa.model.checkpoint import load_run
from rfa.model.layers import RobustMixer
from rfa.model.series.network import SeriesNetwork
from rfa.runtime.series.config import SeriesConfig
from rfa.runtime.text.config import Confidence
from rfa.training.series_batches import synthetic_batch
from rfa.training.series_config import SeriesRun, SeriesTrainingConfig
from rfa.training.series_network import train_series, validate

HELD_OUT_SEED = 95_000
GATES: tuple[Confidence, ...] = ("none", "balanced", "open")
SHARES = (0.01, 0.25, 0.5, 0.75, 0.99)
MODEL = SeriesConfig(
    d_model=64, n_layers=2, n_heads=2, head_dim=8, n_slots=4, embedding_width=64, head_width=64, head_inner=32
)
TRAINING = SeriesTrainingConfig(
    steps=150, batch=16, tokens=16, optimiser="muon", schedule="wsd", validate_every=150, precision="fp32", workers=0,
    learning_rate=0.004, matrix_learning_rate=0.008,
)  # fmt: skip


def gate_values(network: SeriesNetwork, tokens: torch.Tensor, ends: torch.Tensor) -> list[dict[str, list[float]]]:
    """Return log evidence and gate of each layer, means over heads at quantiles of the evidence of tokens."""
    seen: list[dict[str, list[float]]] = []

    def record(gate: Any, inputs: tuple[Any, ...], _: Any) -> None:
        precision = inputs[0].precision.flatten(0, -2)
        at = np.quantile(precision.double().log().numpy(), SHARES, axis=0)  # [Q, H]
        value = gate.gate(torch.from_numpy(at).exp()).numpy()
        seen.append({"log_evidence": at.mean(1).round(2).tolist(), "gate": value.mean(1).round(3).tolist()})

    mixers = [cast(RobustMixer, block.mixer) for block in network.blocks]
    handles = [mixer.confidence.register_forward_hook(record) for mixer in mixers]
    with torch.no_grad():
        network.states(tokens, ends)
    for handle in handles:
        handle.remove()
    return seen


def measure(runs: Path, seeds: int) -> list[dict[str, Any]]:
    """Train each network that `runs` lacks, and return a row of each."""
    made = (synthetic_batch(HELD_OUT_SEED, 64, TRAINING.tokens, index, "validation") for index in range(4))
    batches, rows = list(made), []
    for seed, kind in product(range(seeds), GATES):
        run, folder = SeriesRun(replace(MODEL, confidence=kind), replace(TRAINING, seed=seed)), runs / f"{kind}-s{seed}"
        record = train_series(run, folder)
        network = cast(SeriesNetwork, load_run(folder))
        row = {"gate": kind, "seed": seed, "seconds": record["seconds"], **validate(network, batches, "recurrent")}
        if kind != "none":
            row["values"] = gate_values(network, batches[0].tokens, batches[0].ends)
        rows.append(row)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the trained networks")
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    print(json.dumps(measure(given.runs, given.seeds), indent=1))
