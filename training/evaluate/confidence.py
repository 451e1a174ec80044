"""Measure the calibration of token confidence on a test text, in both modes.

The expected calibration error (ECE, 15 bins of equal mass) is measured for the most probable and for a sampled token.
It is measured for the confidence in replies ("served") and for the plain softmax. Confidence intervals resample
windows, because tokens within a text are dependent. The "floor" is the error that a perfectly calibrated model is
expected to have on a text of this size.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from tokenizers import Tokenizer
from tqdm import tqdm

from rfa.measured import origin
from rfa.model.language import LanguageModel
from rfa.model.loading import load_model
from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.bundle.held_out import WINDOW
from rfa.runtime.bundle.token_confidence import BINS, TokenConfidence, reliability
from rfa.runtime.text.config import Mode
from rfa.runtime.text.sampling import draw_index
from rfa.training.corpus import encode_files, file_hashes, split_files

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Claims = NDArray[np.bool_]

TOKENS = 131_072
RULES = ("top", "sampled")
STAGES = ("softmax", "served")
# Ranges of positions in the window.
PLACES = ((0, 16), (16, 64), (64, 256), (256, WINDOW))
BAR = 0.01
REPLICATES, FLOOR_DRAWS = 1000, 20
SEED = 0


@dataclass(frozen=True)
class Observed:
    """Predictions of one mode at n positions of some windows.

    Attributes:
        stated: Probability of the chosen token, `[n]`, by stage ("softmax" or "served") and by the rule that chose it
            ("top" or "sampled").
        is_right: Whether the chosen token was the actual token, `[n]`, by rule.
        nats: Loss of the actual token, `[n]`.
        place: Position of the token in its window, `[n]`.
        window: Index of the window, `[n]`.
    """

    stated: dict[str, dict[str, Reals]]
    is_right: dict[str, Claims]
    nats: Reals
    place: Integers
    window: Integers


def spread_windows(tokens: NDArray[Any], limit: int) -> Integers:
    """Return windows that are spread over a text without overlap, `[windows, WINDOW + 1]`. They contain at most `limit`
    tokens in total.

    Raises:
        ValueError: If the text or the limit is shorter than two windows.
    """
    if limit < 2 * WINDOW:
        raise ValueError(f"--limit {limit} is less than two windows; it must be at least {2 * WINDOW}")
    whole = (len(tokens) - 1) // WINDOW
    count = min(whole, limit // WINDOW)
    if count < 2:
        raise ValueError(f"the text has {len(tokens)} tokens, but two windows need {2 * WINDOW + 1}")
    starts = np.linspace(0, whole - 1, count).astype(int) * WINDOW
    return np.asarray(tokens)[starts[:, None] + np.arange(WINDOW + 1)].astype(np.int64)


@torch.no_grad()
def observe(model: LanguageModel, windows: Integers, mode: Mode, confidence: TokenConfidence) -> Observed:
    """Return the predictions of a mode on windows of tokens.

    Args:
        model: The language model.
        windows: Token ids, `[windows, length + 1]`.
        mode: Decoding mode of the model.
        confidence: Calibration of the confidence in replies.
    """
    model.mode = mode
    generator = np.random.default_rng(SEED)
    parts = []
    for ids in tqdm(windows, desc=f"observe {mode}", unit="window", leave=False):
        output = model(torch.from_numpy(ids[None, :-1]), with_precision=False)
        parts.append(_observe_window(output.logits[0].numpy(), ids[1:], confidence, generator))
    count, length = windows[:, 1:].shape
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return Observed(
        {stage: {rule: joined[f"{stage} {rule}"] for rule in RULES} for stage in STAGES},
        {rule: joined[f"{rule} is right"] for rule in RULES},
        joined["nats"],
        np.tile(np.arange(length), count),
        np.repeat(np.arange(count), length),
    )


def _observe_window(
    logits: NDArray[np.float32],
    targets: Integers,
    confidence: TokenConfidence,
    generator: np.random.Generator,
) -> dict[str, NDArray[Any]]:
    plain = log_softmax(logits, axis=-1)
    scaled = log_softmax(logits / confidence.temperature, axis=-1)
    chosen = {
        "top": logits.argmax(-1),
        "sampled": np.array([draw_index(row, generator.random()) for row in np.exp(plain)]),
    }

    def of(logs: NDArray[np.float32], tokens: Integers) -> Reals:
        return np.take_along_axis(logs, tokens[:, None], -1)[:, 0].astype(np.float64)

    found: dict[str, NDArray[Any]] = {"nats": -of(plain, targets)}
    for rule, tokens in chosen.items():
        found[f"softmax {rule}"] = np.exp(of(plain, tokens))
        found[f"served {rule}"] = confidence(of(scaled, tokens))
        found[f"{rule} is right"] = tokens == targets
    return found


def calibration_error(stated: Reals, is_right: Claims, window: Integers) -> dict[str, Any]:
    """Return the ECE with the bins of `reliability`, a 95 % interval of the ECE by resampling windows, and the floor.

    The percentile interval uses the bins of the whole text. Resampled texts have more noise, so the interval is biased
    upwards.
    """
    table = reliability(stated, is_right)
    place = np.empty(len(stated), np.int64)
    for i, part in enumerate(np.array_split(np.argsort(stated, kind="stable"), BINS)):
        place[part] = i
    count = int(window.max()) + 1
    gaps = np.bincount(window * BINS + place, stated - is_right, count * BINS).reshape(count, BINS)
    generator = np.random.default_rng(SEED)
    drawn = generator.multinomial(count, np.full(count, 1 / count), REPLICATES)
    errors = np.abs(drawn @ gaps).sum(1) / (drawn @ np.bincount(window))
    perfect = [reliability(stated, generator.random(len(stated)) < stated)["ece"] for _ in range(FLOOR_DRAWS)]
    low, high = (float(np.quantile(errors, q)) for q in (0.025, 0.975))
    return {"ece": table["ece"], "interval": [low, high], "floor": float(np.mean(perfect)), "bins": table}


def calibration_part(seen: Observed) -> dict[str, Any]:
    """Return the calibration errors by rule and stage. For the confidence in replies of the most probable token, also
    return the errors by position in the window."""
    rules = {
        rule: {
            stage: calibration_error(stated[rule], seen.is_right[rule], seen.window)
            for stage, stated in seen.stated.items()
        }
        for rule in RULES
    }
    places = {}
    for first, end in PLACES:
        inside = (seen.place >= first) & (seen.place < end)
        if not inside.any():
            continue
        stated, is_right = seen.stated["served"]["top"][inside], seen.is_right["top"][inside]
        found = calibration_error(stated, is_right, seen.window[inside])
        means = {"confidence": float(stated.mean()), "accuracy": float(is_right.mean()), "tokens": len(stated)}
        places[f"{first}-{end - 1}"] = {key: found[key] for key in ("ece", "interval", "floor")} | means
    return {"rules": rules, "top_by_place": places}


def unseen_files(bundle: Bundle, data: Path) -> list[Path]:
    """Return the test files of a corpus, after checking that the bundle has not seen them.

    Raises:
        ValueError: If the bundle was trained or calibrated on one of these files.
    """
    files = split_files(data, "test")
    trained_on = set(bundle.manifest.provenance["training"]["data"].values())
    seen = [name for name, digest in file_hashes(files).items() if digest in trained_on]
    if seen:
        raise ValueError(
            f"{', '.join(seen)}: bundle {bundle.name!r} was trained or calibrated on this text; use other text"
        )
    return files


def report(path: Path, data: Path, *, limit: int = TOKENS) -> dict[str, Any]:
    """Return the calibration of a language bundle on the `test` split of a corpus.

    Args:
        path: Directory of the bundle.
        data: Directory of the corpus.
        limit: Maximum number of tokens of the test text to score.
    """
    bundle, model = open_bundle(path), load_model(path)
    files = unseen_files(bundle, data)
    tokenizer = Tokenizer.from_str(bundle.read("tokenizer.json").decode())
    windows = spread_windows(encode_files(tokenizer, files), limit)
    modes = {}
    for mode in model.config.modes:
        confidence = TokenConfidence.of(bundle.calibration, mode)
        seen = observe(model, windows, mode, confidence)
        modes[mode] = {"nats_per_token": float(seen.nats.mean()), "calibration": calibration_part(seen)}
    return {
        **origin("rfa eval confidence"),
        "bundle": {"name": bundle.name, "digest": bundle.digest},
        "data": {"test": file_hashes(files)},
        "window": WINDOW,
        "tokens": {"test": windows[:, 1:].size},
        "modes": modes,
        "bars": bars(modes),
    }


def bars(modes: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the calibration errors with the target, and return the comparisons.

    The target is an ECE of at most 1 % in every mode, both for the most probable token and for a sampled token. The ECE
    is that of the confidence in replies.
    """
    rows = []
    for mode, part in modes.items():
        for rule in ("top", "sampled"):
            found = part["calibration"]["rules"][rule]["served"]
            rows.append(
                {"name": f"{mode}, {rule}: ECE", "bar": BAR, "actual": found["ece"], "met": found["ece"] <= BAR}
            )
    return rows


def table(document: dict[str, Any]) -> list[str]:
    """Return the lines of the table that `rfa eval` prints."""
    lines = [
        f"{'mode':<10} {'token':<8} {' '.join(f'{stage:>11}' for stage in STAGES)} {'served, 95 %':>15} {'floor':>7}"
    ]
    for mode, part in document["modes"].items():
        for rule, stages in part["calibration"]["rules"].items():
            errors = " ".join(f"{100 * stages[stage]['ece']:>9.2f} %" for stage in STAGES)
            low, high = (100 * end for end in stages["served"]["interval"])
            floor = f"{100 * stages['served']['floor']:.2f} %"
            lines.append(f"{mode:<10} {rule:<8} {errors} {f'{low:.2f} to {high:.2f}':>15} {floor:>7}")
    return lines
