"""Jobs that need a GPU, the most important first."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rfa.benchmarks.gpu_queue.queue import Part

# The time limit of a part in a rehearsal, generous because the machine may be slow.
REHEARSAL_SECONDS = 900.0


@dataclass(frozen=True)
class Wishes:
    """Options of the parts.

    Attributes:
        is_rehearsal: Whether to run on a CPU, with small sizes.
        series_config, series_minutes: training of the series network, over all sessions; None: the shipped recipe.
        series_from: Run with the initial weights. None starts with random weights.
        bundle: Language model with kernels for this GPU. None compiles the kernels of `books`.
        books: Directory of texts on which `books` is trained. None omits this training.
        check_seconds: Duration of `rfa gpu-check`.
    """

    out: Path
    is_rehearsal: bool = False
    series_config: Path | None = None
    series_minutes: float | None = None
    series_from: Path | None = None
    bundle: Path | None = None
    books: Path | None = None
    check_seconds: float = 200.0


def tests(wishes: Wishes) -> Part:
    """Return the job that runs the tests that need a GPU."""
    rehearsal = ("--rehearse",) if wishes.is_rehearsal else ()
    command = (sys.executable, "-m", "rfa.benchmarks.gpu_queue.cuda_tests", *rehearsal)
    return Part("tests", command, seconds=120, least=40)


def check(wishes: Wishes) -> Part:
    """Check and time the kernels; attention is compared with FlashAttention-2 and FlexAttention."""
    command: tuple[str, ...] = (sys.executable, "-m", "rfa", "gpu-check", "--seconds", str(wishes.check_seconds))
    if wishes.is_rehearsal:
        # Without a GPU the check does nothing and exits with the code for that.
        script = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]) != 2)"
        command = (sys.executable, "-c", script, *command)
    out = "gpu-check.json"
    return Part("gpu-check", (*command, "--out", str(wishes.out / out)), wishes.check_seconds + 40, 80, result=out)


def _module(wishes: Wishes, name: str, *arguments: str) -> tuple[str, ...]:
    rehearsal = ("--rehearse",) if wishes.is_rehearsal else ()
    return (sys.executable, "-m", f"rfa.benchmarks.gpu_queue.{name}", "--out", str(wishes.out), *arguments, *rehearsal)


def series_speed(wishes: Wishes) -> Part:
    """Return the job that measures the training speed of the series network, by size and batch."""
    return Part("series-speed", _module(wishes, "series_speed", "--seconds", "75"), 95, 30, result="series-speed.json")


def series(wishes: Wishes) -> Part:
    """Return the job that trains the series network, and resumes an earlier session."""
    config = () if wishes.series_config is None else ("--config", str(wishes.series_config))
    minutes = () if wishes.series_minutes is None else ("--minutes", str(wishes.series_minutes))
    begin = () if wishes.series_from is None else ("--from", str(wishes.series_from))
    return Part("series", _module(wishes, "series", *config, *minutes, *begin), seconds=460, least=60)


def served(wishes: Wishes) -> Part:
    """Return the job that tests a server with stored kernels and without a compiler under load."""
    bundle = () if wishes.bundle is None else ("--bundle", str(wishes.bundle))
    no_compiler = {"CC": "/bin/false"} if wishes.bundle is not None else {}
    return Part("served", _module(wishes, "served", *bundle), 120, 30, no_compiler, result="load-text-64-gpu.json")


def books(wishes: Wishes) -> Part:
    """Return the job that trains the language model for a limited time."""
    out = wishes.out / "books"
    config = "small" if wishes.is_rehearsal else "books"
    steps = ("--steps", "1") if wishes.is_rehearsal else ()
    command = (sys.executable, "-m", "rfa", "train", "lm", "--data", str(wishes.books), "--config", config)
    return Part("books", (*command, *steps, "--out", str(out)), seconds=120, least=60)


QUEUE: dict[str, Callable[[Wishes], Part]] = {
    "tests": tests,
    "gpu-check": check,
    "series": series,
    "served": served,
    "series-speed": series_speed,
    "books": books,
}


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def parts(wishes: Wishes, names: tuple[str, ...] = ()) -> list[Part]:
    """Return the named parts, or all, in the order of the queue. `books` needs texts.

    Raises:
        ValueError: a name is unknown.
    """
    unknown = set(names) - set(QUEUE)
    if unknown:
        raise ValueError(f"unknown parts {sorted(unknown)}; known are {', '.join(QUEUE)}")
    chosen = names or tuple(name for name in QUEUE if name != "books" or wishes.books is not None)
    made = [make(wishes) for name, make in QUEUE.items() if name in chosen]
    return [replace(part, seconds=REHEARSAL_SECONDS, least=0) for part in made] if wishes.is_rehearsal else made


def summarise(record: dict[str, dict[str, object]]) -> str:
    """Return a line per part."""
    return "\n".join(f"{name}: {json.dumps(found)}" for name, found in record.items())
