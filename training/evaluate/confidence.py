"""Whether the confidence of a token can be believed, and whether evidence tells more than the softmax does.

Windows of a test text, each from nothing, in both modes, against the token that came:

    calibration     expected calibration error (15 bins of equal mass) of the confidence as it is served, of the most
                    likely token and of one drawn from the model; beside it that of the plain softmax
    discrimination  AUROC and AURC of telling whether the most likely token is right, by the softmax's largest
                    probability, by its entropy, and by the evidence (log precision): that of the last layer, which is
                    served, and that of every head of every layer. Scores of several features are logistic regressions
                    fitted on the validation text.

Tokens of one text are not independent: intervals take windows for the independent unit. A perfectly calibrated model
has an error, too, on a finite text: its expectation stands beside each error as its "floor".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm

from rfa.export.bundle import Bundle, open_bundle
from rfa.export.language_calibration import WINDOW
from rfa.export.loading import load_model
from rfa.export.token_confidence import BINS, TokenConfidence, reliability
from rfa.measured import origin, write_result
from rfa.model.config import Mode
from rfa.model.language import LanguageModel
from rfa.model.layers import RobustMixer
from rfa.model.mixing import MixerOutput
from rfa.service.engine.text.sampling import draw_index
from rfa.training.corpus import encode_files, file_hashes, split_files
from rfa.training.evaluate.discrimination import Auroc, Claims, Reals, aurc, auroc, fit_logistic, with_interval

Integers = NDArray[np.int64]

TOKENS, FIT_TOKENS = 131_072, 32_768
RULES = ("top", "sampled")
STAGES = ("softmax", "served")
# Places in the window, by the number of tokens before the predicted one's predecessor.
PLACES = ((0, 16), (16, 64), (64, 256), (256, WINDOW))
BAR = 0.01
REPLICATES, FLOOR_DRAWS = 1000, 20
SEED = 0

# name → the features that it is made of; the log odds of more than one, or of precisions, are fitted.
SCORES: dict[str, tuple[str, ...]] = {
    "probability": ("log_probability",),
    "entropy": ("entropy",),
    "precision": ("log_precision",),
    "entropy + precision": ("entropy", "log_precision"),
    "entropy + heads": ("entropy", "head_log_precisions"),
    "softmax": ("log_probability", "entropy"),
    "softmax + precision": ("log_probability", "entropy", "log_precision"),
    "softmax + heads": ("log_probability", "entropy", "head_log_precisions"),
}
DIFFERENCES = (
    ("entropy + precision", "entropy"),
    ("entropy + heads", "entropy"),
    ("softmax + precision", "softmax"),
    ("softmax + heads", "softmax"),
    ("entropy", "probability"),
    ("precision", "entropy"),
)


@dataclass(frozen=True)
class Observed:
    """What one mode said at the n places of some windows.

    Attributes:
        stated: probability of the chosen token by stage and rule, `[n]`.
        is_right: whether it came, by rule, `[n]`.
        features: of the whole distribution, and log precisions, `[n]` or `[n, k]`.
        nats: of the token that came, `[n]`.
        place, window: where in which window, `[n]`.
    """

    stated: dict[str, dict[str, Reals]]
    is_right: dict[str, Claims]
    features: dict[str, Reals]
    nats: Reals
    place: Integers
    window: Integers


@contextmanager
def head_precisions() -> Iterator[list[Tensor]]:
    """The log precisions `[B, N, H]` of the layers that run meanwhile, in order."""
    seen: list[Tensor] = []
    original = RobustMixer.finish

    def finish(mixer: RobustMixer, *arguments: Any) -> MixerOutput:
        mixed = original(mixer, *arguments)
        seen.append(mixed.log_precision)
        return mixed

    with patch.object(RobustMixer, "finish", finish):
        yield seen


def spread_windows(tokens: NDArray[Any], limit: int) -> Integers:
    """As many windows as `limit` tokens fill, spread over a text without overlap: `[windows, WINDOW + 1]`.

    Raises:
        ValueError: the text or the limit is shorter than two windows.
    """
    whole = (len(tokens) - 1) // WINDOW
    count = min(whole, limit // WINDOW)
    if count < 2:
        raise ValueError(f"two windows need {2 * WINDOW + 1} tokens, the text has {len(tokens)}, the limit is {limit}")
    starts = np.linspace(0, whole - 1, count).astype(int) * WINDOW
    return np.asarray(tokens)[starts[:, None] + np.arange(WINDOW + 1)].astype(np.int64)


@torch.no_grad()
def observe(model: LanguageModel, windows: Integers, mode: Mode, confidence: TokenConfidence) -> Observed:
    """What a mode says of windows of tokens `[windows, length + 1]`, with the confidence of its calibration."""
    model.mode = mode
    generator = np.random.default_rng(SEED)
    parts = []
    for ids in tqdm(windows, desc=f"observe {mode}", unit="window", leave=False):
        with head_precisions() as layers:
            output = model(torch.from_numpy(ids[None, :-1]))
        features = {
            "log_precision": output.log_precision[0].numpy(),
            "head_log_precisions": torch.cat(layers, dim=-1)[0].numpy(),
        }
        parts.append(_observe_window(output.logits[0].numpy(), ids[1:], features, confidence, generator))
    count, length = windows[:, 1:].shape
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return Observed(
        {stage: {rule: joined[f"{stage} {rule}"] for rule in RULES} for stage in STAGES},
        {rule: joined[f"{rule} is right"] for rule in RULES},
        {name: joined[name].astype(np.float64) for name in dict.fromkeys(sum(SCORES.values(), ()))},
        joined["nats"],
        np.tile(np.arange(length), count),
        np.repeat(np.arange(count), length),
    )


def _observe_window(
    logits: NDArray[np.float32],
    targets: Integers,
    features: dict[str, NDArray[np.float32]],
    confidence: TokenConfidence,
    generator: np.random.Generator,
) -> dict[str, NDArray[Any]]:
    plain = log_softmax(logits, axis=-1)
    scaled = log_softmax(logits / confidence.temperature, axis=-1)
    weights = np.exp(plain)
    chosen = {
        "top": logits.argmax(-1),
        "sampled": np.array([draw_index(row, generator.random()) for row in weights]),
    }

    def of(logs: NDArray[np.float32], tokens: Integers) -> Reals:
        return np.take_along_axis(logs, tokens[:, None], -1)[:, 0].astype(np.float64)

    found: dict[str, NDArray[Any]] = {
        **features,
        "log_probability": plain.max(-1),
        "entropy": -(weights * plain).sum(-1),
        "nats": -of(plain, targets),
    }
    for rule, tokens in chosen.items():
        found[f"softmax {rule}"] = np.exp(of(plain, tokens))
        found[f"served {rule}"] = confidence(of(scaled, tokens))
        found[f"{rule} is right"] = tokens == targets
    return found


def calibration_error(stated: Reals, is_right: Claims, window: Integers) -> dict[str, Any]:
    """The bins and ECE of `reliability`, its 95 % interval by resampling windows, and its floor.

    The interval is a percentile one with the bins of the whole text: a resampled text has the noise of two texts, so it
    lies too high rather than too low.
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
    """Errors by rule and stage, and of the served confidence of the most likely token by place."""
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


def discrimination_part(fit: Observed, test: Observed) -> dict[str, Any]:
    """AUROC and AURC of every score on the test text, and the differences that answer what evidence adds."""
    is_right, found, rows = test.is_right["top"], {}, {}
    for name, features in SCORES.items():
        score = _score(fit, test, features)
        found[name] = auroc(score, is_right)
        rows[name] = {
            "auroc": with_interval(found[name].value, found[name].influence, test.window),
            "aurc": aurc(score, is_right),
        }
    return {
        "is_wrong": float(1 - is_right.mean()),
        "scores": rows,
        "differences": {f"{a} - {b}": _difference(found[a], found[b], test.window) for a, b in DIFFERENCES},
    }


def _score(fit: Observed, test: Observed, features: tuple[str, ...]) -> Reals:
    """Higher where the most likely token is likelier right."""
    before, after = (np.column_stack([seen.features[name] for name in features]) for seen in (fit, test))
    return fit_logistic(before, fit.is_right["top"])(after)


def _difference(a: Auroc, b: Auroc, window: Integers) -> dict[str, Any]:
    return with_interval(a.value - b.value, a.influence - b.influence, window)


def unseen_files(bundle: Bundle, data: Path) -> list[Path]:
    """The test files of a corpus.

    Raises:
        ValueError: the bundle was trained or calibrated on one of them.
    """
    files = split_files(data, "test")
    known = set(bundle.manifest.provenance["training"]["data"].values())
    seen = [name for name, digest in file_hashes(files).items() if digest in known]
    if seen:
        raise ValueError(f"{', '.join(seen)}: bundle {bundle.name!r} was made with this text, it tests nothing")
    return files


def report(path: Path, data: Path, *, limit: int = TOKENS, fit_limit: int = FIT_TOKENS) -> dict[str, Any]:
    """The whole measurement of a language bundle on a corpus with `valid` and `test`.

    Args:
        limit, fit_limit: tokens of the test text that are scored, and of the validation text that scores are fitted on.
    """
    bundle, model = open_bundle(path), load_model(path)
    files = {"valid": split_files(data, "valid"), "test": unseen_files(bundle, data)}
    tokenizer = Tokenizer.from_str(bundle.read("tokenizer.json").decode())
    windows = {
        split: spread_windows(encode_files(tokenizer, files[split]), most)
        for split, most in (("valid", fit_limit), ("test", limit))
    }
    modes = {}
    for mode in model.config.modes:
        confidence = TokenConfidence.of(bundle.calibration, mode)
        seen = {split: observe(model, part, mode, confidence) for split, part in windows.items()}
        modes[mode] = {
            "nats_per_token": float(seen["test"].nats.mean()),
            "calibration": calibration_part(seen["test"]),
            "discrimination": discrimination_part(seen["valid"], seen["test"]),
        }
    return {
        **origin("python -m rfa.training.evaluate.confidence"),
        "bundle": {"name": bundle.name, "digest": bundle.digest},
        "data": {split: file_hashes(part) for split, part in files.items()},
        "window": WINDOW,
        "tokens": {split: part[:, 1:].size for split, part in windows.items()},
        "modes": modes,
        "bars": bars(modes),
    }


def bars(modes: dict[str, Any]) -> list[dict[str, Any]]:
    """ECE of at most 1 % as served, of the most likely and of the sampled token, in every mode."""
    rows = []
    for mode, part in modes.items():
        for rule in ("top", "sampled"):
            found = part["calibration"]["rules"][rule]["served"]
            rows.append(
                {"name": f"{mode}, {rule}: ECE", "bar": BAR, "actual": found["ece"], "met": found["ece"] <= BAR}
            )
    return rows


def table(document: dict[str, Any]) -> list[str]:
    """What a terminal shows."""
    lines = [
        f"{'mode':<10} {'token':<8} {' '.join(f'{stage:>11}' for stage in STAGES)} {'served, 95 %':>15} {'floor':>7}"
    ]
    for mode, part in document["modes"].items():
        for rule, stages in part["calibration"]["rules"].items():
            errors = " ".join(f"{100 * stages[stage]['ece']:>9.2f} %" for stage in STAGES)
            low, high = (100 * end for end in stages["served"]["interval"])
            floor = f"{100 * stages['served']['floor']:.2f} %"
            lines.append(f"{mode:<10} {rule:<8} {errors} {f'{low:.2f} to {high:.2f}':>15} {floor:>7}")
    lines.append("")
    for mode, part in document["modes"].items():
        found = part["discrimination"]
        for name, row in found["scores"].items():
            low, high = row["auroc"]["interval"]
            lines.append(
                f"{mode:<10} {name:<20} AUROC {row['auroc']['value']:.4f} ({low:.4f} to {high:.4f}), "
                f"AURC {row['aurc']:.4f}"
            )
        for name, row in found["differences"].items():
            low, high = row["interval"]
            lines.append(f"{mode:<10} {name}: {row['value']:+.5f} ({low:+.5f} to {high:+.5f})")
    return lines


def main() -> None:
    """`python -m rfa.training.evaluate.confidence bundles/books --data CORPUS --out FILE --plot FILE`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="corpus folder with valid and test")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--limit", type=int, default=TOKENS, help="score at most so many tokens")
    parser.add_argument("--plot", type=Path, help="figure to write")
    arguments = parser.parse_args()
    document = report(arguments.bundle, arguments.data, limit=arguments.limit)
    write_result(arguments.out, document)
    if arguments.plot is not None:
        from rfa.training.evaluate.confidence_plot import draw_reliability

        draw_reliability(document, arguments.plot)
    sys.stdout.write("\n".join(table(document)) + "\n")


if __name__ == "__main__":
    main()
