"""Small language models of the papers, trained with a record of their noises: the data of RFA figures 6 and 8 to 14.

Of the last layer, every few steps and per head: gamma², eta², the steady process variance sigma² / (2 mu), nu / D, tau
and the phase parameter alpha = eta² - sigma² / (2 mu) (RFA A.3), which is undefined without decay.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rfa.model.checkpoint import load_run
from rfa.model.dynamics import raw_from_positive
from rfa.model.language import LanguageModel
from rfa.training.corpus import Blocks, prepare_corpus
from rfa.training.language import Trainer, cross_entropy, validation_loss
from rfa.training.language_config import LanguageRun, find_config

HEADS: dict[str, Any] = {"n_heads": 8, "head_dim": 16}
# name → (variant, steady process variance at the start, or None for the default .1).
MODELS: dict[str, tuple[str, float | None]] = {
    "B1": ("B1", None),
    "B2": ("B2", None),
    "M1": ("M1", None),
    "M2": ("M2", None),
    "M2 diffusive": ("M2", 3.0),
    "M2 near the border": ("M2", 1.2),
}
CURVES_FILE = "curves.json"


STEPS = 400
# Sizes of a run. Noises and losses are recorded after these numbers of steps.
SIZES: dict[str, Any] = {
    "batch": 8, "context": 128, "record_every": 10, "validate_every": 50, "validation_tokens": 16_384,
    "config": "small",
}  # fmt: skip


def noises(model: LanguageModel) -> dict[str, list[float | None]]:
    """Return the noises of the last layer per head; {} for models without."""
    parameters: Any = getattr(model.blocks[-1].mixer, "dynamics", None)
    if parameters is None:
        return {}
    with torch.no_grad():
        found = parameters()
    steady = torch.where(found.mu > 0, found.sigma2 / (2 * found.mu), torch.nan)
    rows = {
        "gamma2": found.gamma2,
        "eta2": found.eta2,
        "steady": steady,
        "nu_over_d": found.nu / found.complex_dims,
        "tau": found.tau,
        "alpha": found.eta2 - steady,
    }
    return {name: [None if math.isnan(x) else round(x, 5) for x in row.tolist()] for name, row in rows.items()}


def start_diffusive(model: LanguageModel, steady: float) -> None:
    """Set the steady process variance of every head with decay, so that alpha < 0 (RFA F.2)."""
    blocks: Any = model.blocks
    for block in blocks:
        dynamics = block.mixer.dynamics
        with torch.no_grad():
            dynamics.process_raw[dynamics.mu > 0] = raw_from_positive(steady)


def trained(
    name: str, steps: int, data: Path, runs: Path, tick: Callable[[], object] = lambda: None
) -> tuple[LanguageModel, dict[str, Any]]:
    """Return a model of `MODELS` and its curves, trained unless its folder in `runs` holds it."""
    folder, (variant, steady) = runs / name.replace(" ", "-"), MODELS[name]
    context, request = SIZES["context"], {"name": name, "steps": steps, **SIZES}
    if (folder / CURVES_FILE).is_file():
        curves: dict[str, Any] = json.loads((folder / CURVES_FILE).read_text())
        if curves["request"] != request:
            raise ValueError(f"{folder} holds a run of other sizes; choose another --runs")
        return load_run(folder), curves
    run = LanguageRun.from_file(find_config(SIZES["config"]), variant)
    sizes: dict[str, Any] = {"steps": steps, "batch": SIZES["batch"], "context": context}
    run = LanguageRun(replace(run.model, **HEADS), replace(run.training, **sizes))
    corpus = prepare_corpus(data, runs / "corpus", run.model.vocab_size)
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(run, corpus, folder, torch.device("cpu"))
    if steady is not None:
        start_diffusive(trainer.model, steady)
    blocks = Blocks(corpus.tokens("train"), context, SIZES["batch"], run.training.seed)
    records, losses = [{"step": 0, **noises(trainer.model)}], []
    for step in range(1, steps + 1):
        inputs, targets = (torch.from_numpy(part) for part in blocks[step - 1])
        trainer.update(inputs, targets, cross_entropy)
        if step % SIZES["record_every"] == 0:
            records.append({"step": step, **noises(trainer.model)})
        if step % SIZES["validate_every"] == 0:
            tokens = corpus.tokens("valid")
            loss = validation_loss(trainer.averaged, tokens, context, "attention", SIZES["validation_tokens"])
            losses.append({"step": step, "loss": round(loss, 4)})
        tick()
    trainer.save()
    curves = {"request": request, "validation": losses, "noises": records if len(records[0]) > 1 else []}
    (folder / CURVES_FILE).write_text(json.dumps(curves) + "\n")
    return load_run(folder), curves
