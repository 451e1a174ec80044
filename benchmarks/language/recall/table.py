"""Associative recall and copying by the number of slots: `rfa bench recall`.

Each setting learns each task of `tasks.py` from random weights, so results are lower bounds of the capacity of the
state. They have Wilson intervals; the last columns have filler between pairs and queries. A layer has 4 · S slots in
all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import binomtest
from tqdm import tqdm

from rfa.benchmarks.gpu.paired import Bar
from rfa.benchmarks.language.recall.tasks import (
    CHANCE,
    JOINT_VOCABULARY,
    VOCABULARY,
    Batch,
    Curriculum,
    RecallConfig,
    Task,
    answers,
    copy_batch,
    recall_batch,
    train_recall,
)
from rfa.measured import git_commit, hardware, write_result
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig, Mode

# A size is held from this accuracy on.
HELD = 0.99
# The settings of the recurrent mode under the requirement, and its number of pairs.
BAR_SETTINGS, BAR_PAIRS = ("S16", "S16-joint"), 16
# Tokens of a test batch, which bounds the memory of the attention matrices.
TEST_TOKENS = 8192


@dataclass(frozen=True)
class Setting:
    """A model to train: its changes of the plan's model, its mode, and its changes of the training of recall."""

    name: str
    title: str
    mode: Mode
    model: Mapping[str, Any]
    recall: Mapping[str, Any] = field(default_factory=dict)


JOINT = {"joint": True, "keys": 32}
SETTINGS = (
    Setting("softmax", "softmax + RoPE (B1)", "attention", {"mixer": "softmax", "frequencies": "full"}),
    Setting("rfa", "RFA (M2)", "attention", {"n_slots": 0}),
    Setting("S1", "1 slot", "recurrent", {"n_slots": 1}),
    Setting("S4", "4 slots", "recurrent", {"n_slots": 4}),
    Setting("S16", "16 slots", "recurrent", {"n_slots": 16}),
    Setting("S32", "32 slots", "recurrent", {"n_slots": 32}),
    Setting("S16-W16", "16 slots, window 16", "recurrent", {"n_slots": 16, "window": 16}),
    Setting("S32-W16", "32 slots, window 16", "recurrent", {"n_slots": 32, "window": 16}),
    Setting("S16-128", "16 slots, 128 keys", "recurrent", {"n_slots": 16}, {"keys": 128}),
    Setting("S4-joint", "4 slots, joint pairs", "recurrent", {"n_slots": 4}, JOINT),
    Setting("S16-joint", "16 slots, joint pairs", "recurrent", {"n_slots": 16}, JOINT),
)


# Half of the late steps train the largest size. 16 slots never hold 64 pairs, so those steps would be lost.
RECALL = RecallConfig("recall", (2, 4, 8, 16, 32), steps=6000)
COPY = RecallConfig("copy", (4, 8, 16, 32, 64), steps=3000)


@dataclass(frozen=True)
class RecallPlan:
    """Sizes of the experiment. `fillers` are the distances at which `filler_pairs` pairs are queried."""

    d_model: int = 64
    n_layers: int = 3
    n_heads: int = 4
    head_dim: int = 8
    recall: RecallConfig = RECALL
    copy: RecallConfig | None = COPY
    pairs: tuple[int, ...] = (4, 8, 16, 32, 64)
    lengths: tuple[int, ...] = (8, 16, 32, 64)
    fillers: tuple[int, ...] = (64, 256, 1024)
    filler_pairs: int = 16
    answers: int = 4096
    settings: tuple[str, ...] = tuple(setting.name for setting in SETTINGS)

    def trainings(self) -> list[RecallConfig]:
        return [config for config in (self.recall, self.copy) if config is not None]


# A run of three minutes: attention and 16 slots learn a few pairs.
QUICK = RecallPlan(
    recall=RecallConfig("recall", (2, 4), steps=300),
    copy=None,
    pairs=(2, 4),
    fillers=(64,),
    filler_pairs=4,
    answers=1024,
    settings=("softmax", "rfa", "S16"),
)


def available(names: Sequence[str]) -> list[Setting]:
    """Return the settings of the given names."""
    by_name = {setting.name: setting for setting in SETTINGS}
    for name in names:
        if name not in by_name:
            raise ValueError(f"setting must be one of {', '.join(by_name)}, got {name!r}")
    return [by_name[name] for name in names]


def model_config(plan: RecallPlan, setting: Setting) -> LanguageModelConfig:
    sizes = {name: getattr(plan, name) for name in ("d_model", "n_layers", "n_heads", "head_dim")}
    vocabulary = JOINT_VOCABULARY if setting.recall.get("joint") else VOCABULARY
    return LanguageModelConfig.from_dict({"vocab_size": vocabulary, **sizes, **setting.model})


def state_floats(config: LanguageModelConfig, mode: Mode) -> int | None:
    """Return the number of values in the recurrent state of any number of tokens. None: attention keeps all tokens."""
    if mode == "attention":
        return None
    window = 4 * config.head_dim * config.window
    return config.n_layers * config.n_heads * (config.n_slots * (4 * config.head_dim + 1) + window)


@torch.no_grad()
def right_answers(model: LanguageModel, batch: Batch) -> torch.Tensor:
    """Return whether each answer of each row `[B, A]` is the model's first choice."""
    rows = max(1, TEST_TOKENS // batch.tokens.shape[1])
    found = []
    for tokens, targets in zip(batch.tokens.split(rows), batch.targets.split(rows), strict=True):
        logits, expected = answers(model, Batch(tokens, targets))
        found.append((logits.argmax(-1) == expected).reshape(len(tokens), -1))
    return torch.cat(found)


def score(right: torch.Tensor) -> dict[str, Any]:
    """Return the fraction of correct answers with its 95 % interval, and the fraction of sequences without a mistake.

    A greedy decoder that reads its own answers makes its first mistake at the same token, so the second fraction is
    also that of exactly copied strings.
    """
    count, total = int(right.sum()), right.numel()
    interval = binomtest(count, total).proportion_ci(method="wilson")
    return {
        "answers": total,
        "accuracy": count / total,
        "low": float(interval.low),
        "high": float(interval.high),
        "sequences": len(right),
        "exact": int(right.all(1).sum()) / len(right),
    }


def recall_scores(model: LanguageModel, config: RecallConfig, plan: RecallPlan) -> list[dict[str, Any]]:
    """Return a cell per number of pairs without filler, then per length of filler at `filler_pairs`."""
    cells = [(pairs, 0) for pairs in plan.pairs if pairs <= config.keys]
    cells += [(plan.filler_pairs, filler) for filler in plan.fillers]
    scores = []
    for pairs, filler in cells:
        rows = -(-plan.answers // pairs)
        batch = recall_batch(
            config.seed, pairs, rows, pairs, keys=config.keys, filler=filler, joint=config.joint, split="test"
        )
        scores.append({"size": pairs, "filler": filler, **score(right_answers(model, batch))})
    return scores


def copy_scores(model: LanguageModel, config: RecallConfig, plan: RecallPlan) -> list[dict[str, Any]]:
    """Return a cell per length of the string."""
    scores = []
    for length in plan.lengths:
        batch = copy_batch(config.seed, length, -(-plan.answers // length), length, split="test")
        scores.append({"size": length, "filler": 0, **score(right_answers(model, batch))})
    return scores


def capacity(scores: Sequence[Mapping[str, Any]]) -> int:
    """Return the largest size without filler up to which every size is held, or 0."""
    held = 0
    for cell in sorted((cell for cell in scores if cell["filler"] == 0), key=lambda cell: cell["size"]):
        if cell["accuracy"] < HELD:
            break
        held = cell["size"]
    return held


def run_setting(plan: RecallPlan, setting: Setting, config: RecallConfig, commit: str | None) -> dict[str, Any]:
    """Train and test one model on one task; `commit` names the code."""
    started = time.perf_counter()
    model = model_config(plan, setting)
    with tqdm(total=config.steps, desc=f"{setting.name} {config.task}") as bar:

        def show(_: int, curriculum: Curriculum, loss: float) -> None:
            bar.update()
            bar.set_postfix({"loss": f"{loss:.3f}", "open": curriculum.open})

        trained = train_recall(model, config, setting.mode, visit=show)
    seconds = time.perf_counter() - started
    test = recall_scores if config.task == "recall" else copy_scores
    scores = test(trained.model, config, plan)
    return {
        "setting": setting.name,
        "title": setting.title,
        "task": config.task,
        "mode": setting.mode,
        "model": model.to_dict(),
        "training": config.to_dict(),
        "parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
        "state_floats": state_floats(model, setting.mode),
        "steps": trained.steps,
        "sizes_trained": list(trained.sizes),
        "seconds": round(seconds, 1),
        "commit": commit,
        "hardware": hardware(),
        "chance": CHANCE[config.task],
        "capacity": capacity(scores),
        "scores": scores,
    }


def bars(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the requirements on the recall of the recurrent mode; `actual` is None if not measured."""
    found = {
        row["setting"]: cell["accuracy"]
        for row in rows
        for cell in row["scores"]
        if row["task"] == "recall" and (cell["size"], cell["filler"]) == (BAR_PAIRS, 0)
    }
    titles = {setting.name: setting.title for setting in SETTINGS}
    return [
        Bar(f"recall of {BAR_PAIRS} pairs, {titles[name]}, no window", HELD, found.get(name), is_minimum=True).to_dict()
        for name in BAR_SETTINGS
    ]


def merged(rows: Sequence[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """Replace the row of the same setting and task, in the order of SETTINGS."""
    order = [setting.name for setting in SETTINGS]
    kept = [old for old in rows if (old["setting"], old["task"]) != (row["setting"], row["task"])]
    return sorted([*kept, row], key=lambda item: (item["task"] != "recall", order.index(item["setting"])))


def _write(out: Path, plan: RecallPlan, rows: list[dict[str, Any]]) -> dict[str, Any]:
    document = {"plan": asdict(plan), "bars": bars(rows), "rows": rows}
    write_result(out, document)
    # JSON has lists instead of tuples.
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def write_recall(
    out: Path, figure: Path | None, plan: RecallPlan, *, only: Sequence[str] = (), task: Task | None = None
) -> dict[str, Any]:
    """Train and test every setting, or those in `only`, and write after each. Other rows of `out` are kept."""
    from rfa.benchmarks.language.recall.plot import draw_recall

    chosen = available(only or plan.settings)
    if not only and task is None:
        out.unlink(missing_ok=True)
    # Before the first training, because the checkout may change while the loaded code runs.
    commit = git_commit()
    # The sizes are too small for more threads.
    torch.set_num_threads(1)
    document: dict[str, Any] = {}
    for config in plan.trainings():
        if task not in (None, config.task):
            continue
        for setting in chosen:
            if config.task == "copy" and setting.recall:
                continue
            changed = replace(config, **setting.recall) if config.task == "recall" else config
            row = run_setting(plan, setting, changed, commit)
            rows = json.loads(out.read_text())["rows"] if out.is_file() else []
            document = _write(out, plan, merged(rows, row))
    if figure is not None:
        draw_recall(document, figure)
    return document
