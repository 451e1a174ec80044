"""The runs of `rfa bench quality`, each trained or resumed if necessary, and scored.

A run is one process with one thread; its log is in its folder. A failed run does not affect the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rfa.benchmarks.language.quality.scores import SCORES_FILE, Scoring, score_run
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.corpus import file_hashes, prepare_corpus, split_files
from rfa.training.device import choose_device
from rfa.training.language import RECORD_FILE, train_language
from rfa.training.language_config import LanguageRun, TrainingConfig, find_config

LOG_FILE = "quality.log"
# One thread per process. Freed memory stays in the process, so the kernel need not clear the same pages repeatedly.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),  # the largest value that glibc accepts; it ignores larger ones
    # Seconds between updates, because a progress bar redrawn ten times per second fills a log.
    "TQDM_MININTERVAL": "30",
}


class FailedRunsError(RuntimeError):
    """Some runs failed. The others are complete and in the table."""


@dataclass(frozen=True)
class Job:
    """A variant of a size config with a seed, trained in its own folder."""

    config: str
    variant: str
    seed: int
    data: Path
    runs: Path
    scoring: Scoring
    device: str = "auto"
    is_training: bool = True

    @property
    def name(self) -> str:
        return f"{self.variant}-s{self.seed}"

    @property
    def folder(self) -> Path:
        return self.runs / self.name

    @property
    def is_trained(self) -> bool:
        return (self.folder / RECORD_FILE).is_file()

    @property
    def run(self) -> LanguageRun:
        """Return the model and training expected in the folder."""
        run = LanguageRun.from_file(find_config(self.config), self.variant)
        return replace(run, training=replace(run.training, seed=self.seed))

    @property
    def corpus(self) -> Path:
        """Return the tokenised corpus, shared by all runs with the same vocabulary."""
        return self.runs / f"corpus-{self.run.model.vocab_size}"

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "data": str(self.data), "runs": str(self.runs)})

    @classmethod
    def from_json(cls, text: str) -> Job:
        values = json.loads(text)
        scoring = Scoring(tuple(values["scoring"]["factors"]), values["scoring"]["tokens"])
        return cls(**{**values, "data": Path(values["data"]), "runs": Path(values["runs"]), "scoring": scoring})


@cache
def training_text(data: Path) -> dict[str, str]:
    """Return the hashes of the training text. Cached, because every run needs them."""
    return file_hashes([*split_files(data, "train"), *split_files(data, "valid")])


def record_of(job: Job) -> dict[str, Any]:
    """Return the record of a finished run, after checking that it matches the job."""
    record: dict[str, Any] = json.loads((job.folder / RECORD_FILE).read_text())
    stored = record["config"]
    # Compared by value: a run older than a field has its default.
    found = LanguageRun(LanguageModelConfig.from_dict(stored["model"]), TrainingConfig.from_dict(stored["training"]))
    if found != job.run:
        expected = {**job.run.model.to_dict(), **job.run.training.to_dict()}
        other = {**found.model.to_dict(), **found.training.to_dict()}
        names = sorted(name for name in expected if expected[name] != other[name])
        raise ValueError(f"{job.folder} holds a run that differs in {', '.join(names)}; choose another --runs")
    if record["data"] != training_text(job.data):
        raise ValueError(f"{job.folder} was trained on other text than {job.data}")
    return record


def perform(job: Job) -> None:
    """Train and score the run if necessary."""
    if not job.is_trained:
        if not job.is_training:
            raise FileNotFoundError(f"{job.folder} has no {RECORD_FILE}: it is not trained")
        train_language(
            job.config,
            job.data,
            job.folder,
            variant=job.variant,
            seed=job.seed,
            corpus_dir=job.corpus,
            device=job.device,
        )
    record_of(job)
    score_run(job.folder, job.data, job.scoring, choose_device(job.device))


def run_jobs(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, str | None]]:
    """Perform all jobs, up to `workers` at once, and yield each with its error or None. One worker is this process."""
    for corpus, job in {job.corpus: job for job in jobs if job.is_training and not job.is_trained}.items():
        prepare_corpus(job.data, corpus, job.run.model.vocab_size)  # once, before concurrent processes need it
    if workers == 1:
        for job in jobs:
            try:
                perform(job)
            except Exception as error:
                yield job, f"{type(error).__name__}: {error}"
            else:
                yield job, None
        return
    pool = ThreadPoolExecutor(workers)
    try:
        pending = {pool.submit(_in_own_process, job): job for job in jobs}
        for done in as_completed(pending):
            yield pending[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _in_own_process(job: Job) -> str | None:
    """Perform a job in a process with one thread. Returns the last line of its log if it fails."""
    job.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **ENVIRONMENT}
    log = job.folder / LOG_FILE
    with log.open("w") as out:
        command = [sys.executable, "-m", "rfa.benchmarks.language.quality.runs", job.to_json()]
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False)
    code = done.returncode
    if code == 0:
        return None
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if code > 0 and lines else f"the process ended with {code}"


def run_row(job: Job) -> dict[str, Any] | None:
    """Return the row of a run in the table, or None if the run is not complete."""
    if not job.is_trained or not (job.folder / SCORES_FILE).is_file():
        return None
    record, scored = record_of(job), json.loads((job.folder / SCORES_FILE).read_text())
    lengths = list(job.scoring.lengths(record["config"]["training"]["context"]))
    if (scored["request"]["lengths"], scored["request"]["tokens"]) != (lengths, job.scoring.tokens):
        return None
    return {
        "variant": job.variant,
        "seed": job.seed,
        "parameters": record["parameters"],
        "training_tokens": record["tokens"],
        "training_seconds": record["seconds"],
        "validation_loss": record["validation_loss"],
        "commit": record["commit"],
        "device": record["device"],
        "weights": scored["request"]["weights"],
        "scoring_commit": scored["commit"],
        "scoring_seconds": scored["seconds"],
        "scores": scored["scores"],
    }


def main() -> None:
    """`python -m rfa.benchmarks.language.quality.runs JOB`: run one job, given as JSON, for `rfa bench quality`."""
    torch.set_num_threads(1)
    perform(Job.from_json(sys.argv[1]))


if __name__ == "__main__":
    main()
