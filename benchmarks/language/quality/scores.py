"""Perplexity of a trained run on a test text, by mode, context length and kind of window.

All settings score the same tokens. "separate" windows do not overlap; "sliding" windows overlap by half, and only their
second half is scored. Scores are stored in the run's folder.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from tokenizers import Tokenizer

from rfa.measured import git_commit, write_result
from rfa.model.checkpoint import WEIGHTS_FILE, load_run
from rfa.model.language import LanguageModel
from rfa.runtime.text.config import Mode
from rfa.training.corpus import encode_files, file_hashes, split_files
from rfa.training.evaluate.language import score, token_bytes, window_losses

Windows = Literal["separate", "sliding"]
WINDOWS: tuple[Windows, ...] = get_args(Windows)
SCORES_FILE = "quality.json"


@dataclass(frozen=True)
class Scoring:
    """Scoring settings: window lengths as multiples of the training length, and the number of scored tokens."""

    factors: tuple[int, ...] = (1, 2, 4, 8)
    tokens: int = 65_536

    def __post_init__(self) -> None:
        if not self.factors or min(self.factors) < 1 or any(max(self.factors) % factor for factor in self.factors):
            raise ValueError(
                f"lengths must be multiples of the training length that divide the longest: {self.factors}"
            )
        object.__setattr__(self, "factors", tuple(sorted(set(self.factors))))

    def lengths(self, context: int) -> tuple[int, ...]:
        """Return the window lengths of a model trained at `context`."""
        lengths = tuple(factor * context for factor in self.factors)
        if self.tokens < lengths[-1] or self.tokens % lengths[-1]:
            raise ValueError(f"tokens to score must be a multiple of the longest window, {lengths[-1]}: {self.tokens}")
        if lengths[0] % 2:
            raise ValueError(f"the windows slide by half their length, which must be even: {lengths[0]}")
        return lengths


def score_text(
    model: LanguageModel, tokens: np.ndarray, sizes: np.ndarray, modes: tuple[Mode, ...], lengths: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Score token ids, with their sizes in bytes, for every kind of window, mode and length.

    Half of the longest window is context of the first scored token.
    """
    first = lengths[-1] // 2
    targets = np.asarray(tokens[first + 1 :], np.int64)
    rows = []
    for mode in modes:
        for windows in WINDOWS:
            for length in lengths:
                scored = length if windows == "separate" else length // 2
                losses = window_losses(model, tokens, length, mode, scored=scored, first=first)
                rows.append({"windows": windows, **asdict(score(losses, targets, sizes, mode, length))})
    return rows


@cache
def _tokenise(tokenizer: str, files: tuple[Path, ...]) -> tuple[Tokenizer, np.ndarray]:
    """Return a tokenizer and the test text in its tokens. Cached, because the runs of a table share a tokenizer."""
    loaded = Tokenizer.from_str(tokenizer)
    return loaded, encode_files(loaded, list(files))


def score_run(run: Path, data: Path, scoring: Scoring, device: torch.device) -> dict[str, Any]:
    """Return the scores of a finished run in its trained modes. Stored scores of the same settings are reused."""
    record = json.loads((run / "train.json").read_text())
    model: LanguageModel = load_run(run).to(device)
    training = record["config"]["training"]
    files = split_files(data, "test")
    request: dict[str, Any] = {
        "weights": hashlib.sha256((run / WEIGHTS_FILE).read_bytes()).hexdigest(),
        "data": file_hashes(files),
        "modes": list(training["modes"] or model.config.modes),
        "lengths": list(scoring.lengths(training["context"])),
        "tokens": scoring.tokens,
    }
    found = run / SCORES_FILE
    if found.is_file() and (stored := json.loads(found.read_text()))["request"] == request:
        return dict(stored)
    tokenizer, tokens = _tokenise((run / "tokenizer.json").read_text(), tuple(files))
    needed = request["lengths"][-1] // 2 + scoring.tokens + 1
    if len(tokens) < needed:
        raise ValueError(f"the test text has {len(tokens):,} tokens; scoring {scoring.tokens:,} needs {needed:,}")
    started = time.perf_counter()
    rows = score_text(
        model, tokens[:needed], token_bytes(tokenizer), tuple(request["modes"]), tuple(request["lengths"])
    )
    result = {
        "request": request,
        "commit": git_commit(),
        "seconds": round(time.perf_counter() - started, 1),
        "scores": rows,
    }
    write_result(found, result)
    return result
