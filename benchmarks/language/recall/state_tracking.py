"""State tracking at K = 1, 2, 3 passes: word problems of A5 and S5 beside recall.

    python -m rfa.benchmarks.language.recall.state_tracking --out results/state-tracking.json

Each model learns each task from random weights on a curriculum of lengths, so results are lower bounds. A GRU shows
what the number of steps suffices for. A cell has the accuracy of the last answer of words of a length (of all answers
for recall), the mean of the seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from rfa.benchmarks.language.recall.table import right_answers
from rfa.benchmarks.language.recall.tasks import (
    CHANCE,
    VOCABULARY,
    RecallConfig,
    Task,
    recall_batch,
    train_on_task,
    train_recall,
    word_batch,
)
from rfa.measured import origin, write_result
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig

SIZES = {"vocab_size": VOCABULARY, "d_model": 64, "n_layers": 2, "n_heads": 4, "head_dim": 8}
MODELS: dict[str, dict[str, Any] | None] = {
    "slots, K = 1": {"n_slots": 8, "inner": 1},
    "slots, K = 2": {"n_slots": 8, "inner": 2},
    "slots, K = 3": {"n_slots": 8, "inner": 3},
    "RFA attention": {"n_slots": 0},
    "GRU": None,
}
TRAININGS = {
    "A5": RecallConfig("A5", (4, 8, 16, 32), steps=1000, tokens=1024),
    "S5": RecallConfig("S5", (4, 8, 16, 32), steps=2000, tokens=1024),
    "recall": RecallConfig("recall", (2, 4, 8), steps=300),
}
ROWS = 512


class RecurrentNetwork(nn.Module):
    """A GRU of two layers with the interface of `LanguageModel`."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width)])
        self.recurrence = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, *, with_precision: bool = False) -> SimpleNamespace:
        """Return logits `[B, N, V]`."""
        return SimpleNamespace(logits=self.head(self.recurrence(self.blocks[0](self.embedding(tokens)))[0]))


def trained_model(changes: dict[str, Any] | None, config: RecallConfig) -> LanguageModel:
    """Train one model of `MODELS`."""
    if changes is not None:
        model = LanguageModelConfig.from_dict({**SIZES, **changes})
        return train_recall(model, config, model.modes[-1]).model
    torch.manual_seed(config.seed)
    network = cast(LanguageModel, RecurrentNetwork())
    train_on_task(network, config)
    return network.eval()


def accuracies(model: LanguageModel, config: RecallConfig) -> list[float]:
    """Return the accuracy on unseen sequences of each size."""
    found = []
    for size in config.sizes:
        if config.task in ("A5", "S5"):
            batch = word_batch(config.task, config.seed, size, ROWS, size, split="test")
            right = right_answers(model, batch)[:, -1]
        else:
            right = right_answers(model, recall_batch(config.seed, size, ROWS, size, keys=config.keys, split="test"))
        found.append(float(right.float().mean()))
    return found


def measure(tasks: Sequence[Task], seeds: Sequence[int], out: Path, steps: int | None = None) -> dict[str, Any]:
    """Train and test every model, and write after each. Rows that `out` already has are not measured again.

    Args:
        steps: Steps of each training, instead of those of `TRAININGS`.
    """
    torch.set_num_threads(1)
    document = origin("python -m rfa.benchmarks.language.recall.state_tracking")
    document["rows"] = json.loads(out.read_text())["rows"] if out.is_file() else []
    measured = {(row["task"], row["model"]) for row in document["rows"]}
    for task in tasks:
        for name, changes in MODELS.items():
            if (task, name) in measured:
                continue
            started, scores = time.process_time(), []
            for seed in seeds:
                config = replace(TRAININGS[task], seed=seed, steps=steps or TRAININGS[task].steps)
                scores.append(accuracies(trained_model(changes, config), config))
            means = [sum(column) / len(column) for column in zip(*scores, strict=True)]
            row = {
                "task": task, "model": name, "steps": config.steps, "seeds": list(seeds), "chance": CHANCE[task],
                "accuracy": dict(zip(map(str, config.sizes), means, strict=True)), "by_seed": scores,
                "cpu_seconds": round(time.process_time() - started, 1),
            }  # fmt: skip
            document["rows"].append(row)
            write_result(out, document)
            print(task, name, [f"{value:.3f}" for value in means], row["cpu_seconds"], flush=True)
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/state-tracking.json"))
    parser.add_argument("--task", action="append", choices=list(TRAININGS), help="repeatable; default all")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--steps", type=int, help="of each training, instead of those of `TRAININGS`")
    given = parser.parse_args()
    measure(given.task or list(TRAININGS), range(given.seeds), given.out, given.steps)


if __name__ == "__main__":
    main()
