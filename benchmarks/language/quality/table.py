"""`rfa bench quality`: train and score every variant of the papers on one corpus, and compare them over seeds.

The size config has width, depth and training, `training/configs/variants.json` the variants; each run has a folder.
Finished runs are not repeated. To score a run again, delete `quality.json` in its folder. If the folder is gone, the
row in the file stays while the rest of the file matches the request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from rfa.benchmarks.language.quality.bars import bars
from rfa.benchmarks.language.quality.runs import Job, run_jobs, run_row
from rfa.benchmarks.language.quality.scores import Scoring
from rfa.benchmarks.language.quality.speed import measure_speed
from rfa.measured import origin, write_result
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.corpus import SPLITS, file_hashes, split_files
from rfa.training.device import choose_device
from rfa.training.language_config import LanguageRun, TrainingConfig, find_config, load_variants

# The models of the papers and the recurrent mode. Recipes and ablations of variants.json are requested by name.
PAPERS = (
    *("B1", "B2", "B3", "B4", "M1", "M2", "M2.1", "M2.2", "M2.3", "M2.4", "M2.5", "M2.6", "M3", "AFA", "RT"),
    *("M2-b5e-4", "M2-b5e-3", "M2-b5e-1", "M2-b5e+0", "slots", "both"),
)


@dataclass(frozen=True)
class QualityPlan:
    """The compared variants. An empty list stands for `PAPERS`."""

    data: Path
    runs: Path
    config: str = "small"
    variants: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    scoring: Scoring = field(default_factory=Scoring)
    device: str = "auto"
    is_training: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "variants", tuple(self.variants or PAPERS))
        for name in ("variants", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"{name} must be different values, at least one; got {values}")
        context = self.base.training.context
        for variant in self.variants:  # unknown names are rejected before anything runs
            if LanguageRun.from_file(find_config(self.config), variant).training.context != context:
                raise ValueError(
                    f"{variant} is trained at another context than {context}; it has no place in the table"
                )
        self.scoring.lengths(context)
        text_hashes(self.data)

    @property
    def base(self) -> LanguageRun:
        return LanguageRun.from_file(find_config(self.config))

    @property
    def jobs(self) -> list[Job]:
        """Return the jobs seed by seed, so that a table of all variants exists early."""
        return [
            Job(self.config, variant, seed, self.data, self.runs, self.scoring, self.device, self.is_training)
            for seed in self.seeds
            for variant in self.variants
        ]

    @property
    def torch_device(self) -> torch.device:
        """Return the device that "auto" selects."""
        return choose_device(self.device)


@cache
def text_hashes(data: Path) -> dict[str, dict[str, str]]:
    """Return the hashes of the files of every split. A missing split is a FileNotFoundError."""
    files = {split: split_files(data, split) for split in SPLITS}
    return {split: file_hashes(paths) for split, paths in files.items()}


def write_quality(plan: QualityPlan, out: Path, *, workers: int = 1) -> dict[str, Any]:
    """Train and score missing runs, and write the table after every run. `failed` and `missing` list the other runs."""
    # Without training, untrained runs are left out rather than failed.
    kept = kept_rows(plan, out)
    jobs = [job for job in plan.jobs if job.name not in kept and (plan.is_training or job.is_trained)]
    failed: dict[str, str] = {}
    document = collect(plan, out, failed)
    with tqdm(total=len(jobs), desc="runs", unit="run") as bar:
        for job, error in run_jobs(jobs, workers):
            if error is not None:
                failed[job.name] = error
            document = collect(plan, out, failed)
            write_result(out, document)
            bar.update()
            bar.set_postfix_str(f"{job.name} {'failed' if error else 'done'}")
    return document


def write_speed(plan: QualityPlan, out: Path) -> dict[str, Any]:
    """Measure the speed of the variants, and add it to the document in `out`.

    If there is no document of this plan, create one from the complete runs.
    """
    runs = {name: LanguageRun.from_file(find_config(plan.config), name) for name in plan.variants}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = measure_speed(runs, plan.torch_device)
    finally:
        torch.set_num_threads(threads)
    stored = _stored(out)
    document = {
        **(stored if _is_of_plan(plan, stored) else collect(plan, out, {})),
        "speed": {**origin("rfa bench quality"), "threads": 1, "rows": rows},
    }
    write_result(out, document)
    return document


def _is_of_plan(plan: QualityPlan, stored: dict[str, Any]) -> bool:
    """Return whether a table has this size and training."""
    if not stored.keys() >= {"model", "training", "factors", "tokens", "data", "variants", "runs"}:
        return False  # no table, or a table of another command
    # Compared by value: a table older than a field has its default.
    model, training = LanguageModelConfig.from_dict(stored["model"]), TrainingConfig.from_dict(stored["training"])
    return plan.base == LanguageRun(model, training)


def is_alike(plan: QualityPlan, stored: dict[str, Any]) -> bool:
    """Return whether a table has this size and training, and is scored on the same text in the same way."""
    scored = [list(plan.scoring.factors), plan.scoring.tokens, text_hashes(plan.data)]
    return _is_of_plan(plan, stored) and scored == [stored[name] for name in ("factors", "tokens", "data")]


def kept_rows(plan: QualityPlan, out: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of `out` whose runs have no folder, by name; none if the file is of other runs."""
    stored = _stored(out)
    if not is_alike(plan, stored):
        return {}
    variants = load_variants()
    rows = {
        f"{row['variant']}-s{row['seed']}": row
        for row in stored["runs"]
        if stored["variants"][row["variant"]] == variants.get(row["variant"])
    }
    return {job.name: rows[job.name] for job in plan.jobs if job.name in rows and not job.folder.exists()}


def collect(plan: QualityPlan, out: Path, failed: dict[str, str]) -> dict[str, Any]:
    """Return the table of the complete runs. Speeds, and rows of runs without a folder, are those of `out`."""
    kept = kept_rows(plan, out)
    rows = {job.name: kept.get(job.name) or run_row(job) for job in plan.jobs if job.name not in failed}
    variants, base = load_variants(), plan.base
    document: dict[str, Any] = {
        **origin("rfa bench quality"),
        "config": plan.config,
        "model": base.model.to_dict(),
        "training": base.training.to_dict(),
        "context": base.training.context,
        "factors": list(plan.scoring.factors),
        "tokens": plan.scoring.tokens,
        "data": text_hashes(plan.data),
        "variants": {name: variants[name] for name in plan.variants},
        "runs": [row for row in rows.values() if row is not None],
        "missing": [job.name for job in plan.jobs if rows.get(job.name) is None],
        "failed": failed,
        "speed": _stored(out).get("speed"),
    }
    return {**document, "bars": bars(document)}


def _stored(out: Path) -> dict[str, Any]:
    return dict(json.loads(out.read_text())) if out.is_file() else {}


def numbers(text: str, name: str) -> tuple[int, ...]:
    """Parse integers from "0,1,2"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name} must be integers with commas between them, got {text!r}") from None


def names(text: str | None) -> Sequence[str]:
    """Parse names from "M1,M2"."""
    return [part.strip() for part in text.split(",")] if text else []
