"""How far the probabilities of a language model can be trusted, and the temperature that makes them trustworthy.

The confidence of a token is softmax(logits / T)[token], with T fitted per decoding mode by least NLL (Guo et al.
2017, On Calibration of Modern Neural Networks) on one half of the validation tokens. Its expected calibration error
is measured on the other half, with bins of equal mass, for two choices of the token: the most likely one ("top"), and
one drawn from the calibrated distribution ("sampled", what a user of /generate sees). Never on test data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from model.config import Mode
from model.language import LanguageModel

Array = NDArray[np.float32]

BINS = 15
WINDOW = 512
MAX_WINDOWS = 64
# Logits held at once: bounds memory at 256 MiB, and the number of windows of a large vocabulary.
MAX_LOGITS = 1 << 26
NEWTON_STEPS = 50
# A model that knows nothing has its least NLL at an infinite temperature; this is where the search ends.
HIGHEST_TEMPERATURE = 20.0
SEED = 0


@dataclass(frozen=True)
class ScoredTokens:
    """logits `[n, V]` float32 and the token that came next `[n]`."""

    logits: Array
    targets: NDArray[np.int64]


def token_probabilities(logits: Array, temperature: float) -> Array:
    """softmax(logits / temperature) along the last axis."""
    scaled = logits / np.float32(temperature)
    scaled -= scaled.max(-1, keepdims=True)
    np.exp(scaled, out=scaled)
    scaled /= scaled.sum(-1, keepdims=True)
    return scaled


def negative_log_likelihood(scored: ScoredTokens, temperature: float) -> float:
    """Mean nats per token at a temperature."""
    return _moments(scored, 1 / temperature)[0]


def fit_temperature(scored: ScoredTokens) -> float:
    """The temperature of least NLL in [1/20, 20]: Newton on b = 1/T, in which the NLL is convex."""
    inverse = 1.0
    for _ in range(NEWTON_STEPS):
        _, slope, curvature = _moments(scored, inverse)
        step = slope / max(curvature, 1e-12)
        # At most a factor of two at once: the quadratic model holds only nearby.
        following = float(np.clip(inverse - step, inverse / 2, inverse * 2))
        following = min(max(following, 1 / HIGHEST_TEMPERATURE), HIGHEST_TEMPERATURE)
        is_settled = abs(following - inverse) < 1e-6 * inverse
        inverse = following
        if is_settled:
            break
    return 1 / inverse


def reliability(confidence: NDArray[Any], correct: NDArray[np.bool_], bins: int = BINS) -> dict[str, Any]:
    """ECE and its bins of equal mass: mean confidence, share correct and count of each, by rising confidence."""
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    stated = [float(confidence[part].mean()) for part in parts]
    actual = [float(correct[part].mean()) for part in parts]
    counts = [len(part) for part in parts]
    gaps = [count * abs(a - b) for count, a, b in zip(counts, stated, actual, strict=True)]
    return {"ece": sum(gaps) / len(order), "confidence": stated, "accuracy": actual, "count": counts}


def calibrate_language(model: LanguageModel, tokens: NDArray[Any], *, window: int = WINDOW) -> dict[str, Any]:
    """Content of calibration.json, from the validation tokens of the run.

    Args:
        tokens: ids of the validation split; windows are spread over it, the first half fits, the second half judges.

    Raises:
        ValueError: fewer tokens than two windows.
    """
    count = min(MAX_WINDOWS, (len(tokens) - 1) // window, 2 * (MAX_LOGITS // (window * model.config.vocab_size)))
    if count < 2:
        raise ValueError(f"the validation split has {len(tokens)} tokens, calibration needs {2 * window + 1}")
    starts = np.linspace(0, len(tokens) - 1 - window, count).astype(int)
    halves = starts[: count // 2], starts[count // 2 :]
    modes: dict[str, Any] = {}
    for mode in model.config.modes:
        fit, held_out = (_score(model, tokens, half, window, mode) for half in halves)
        modes[mode] = _calibrate_mode(fit, held_out)
        del fit, held_out
    used = np.concatenate([tokens[start : start + window + 1] for start in starts]).astype("<u4")
    return {
        "method": "temperature scaling, confidence = softmax(logits / temperature)[token]",
        "temperature": {mode: entry["temperature"] for mode, entry in modes.items()},
        "modes": modes,
        "data": {
            "split": "validation",
            "window": window,
            "fit_tokens": len(halves[0]) * window,
            "held_out_tokens": len(halves[1]) * window,
            "tokens_sha256": hashlib.sha256(used.tobytes()).hexdigest(),
        },
        "summary": {
            "temperature": {mode: entry["temperature"] for mode, entry in modes.items()},
            "ece_top": {mode: entry["top"]["ece"] for mode, entry in modes.items()},
            "ece_sampled": {mode: entry["sampled"]["ece"] for mode, entry in modes.items()},
            "held_out_tokens": len(halves[1]) * window,
        },
    }


def _moments(scored: ScoredTokens, inverse: float) -> tuple[float, float, float]:
    """NLL and its first two derivatives in b = 1/T: E[lse(b z) − b z_y], E[E_p z − z_y], E[Var_p z]."""
    totals = np.zeros(3)
    for i in range(0, len(scored.targets), 1024):
        logits, targets = scored.logits[i : i + 1024], scored.targets[i : i + 1024]
        largest = logits.max(-1, keepdims=True)
        centred = logits - largest
        weights = np.exp(centred * np.float32(inverse))
        norm = weights.sum(-1, dtype=np.float64)
        first = np.einsum("nv,nv->n", weights, centred, dtype=np.float64) / norm
        second = np.einsum("nv,nv,nv->n", weights, centred, centred, dtype=np.float64) / norm
        right = np.take_along_axis(centred, targets[:, None], -1)[:, 0].astype(np.float64)
        totals += [
            (np.log(norm) - inverse * right).sum(),
            (first - right).sum(),
            np.maximum(second - first**2, 0).sum(),
        ]
    nll, slope, curvature = totals / len(scored.targets)
    return float(nll), float(slope), float(curvature)


@torch.no_grad()
def _score(
    model: LanguageModel, tokens: NDArray[Any], starts: NDArray[np.int64], window: int, mode: Mode
) -> ScoredTokens:
    previous, model.mode = model.mode, mode
    logits = np.empty((len(starts), window, model.config.vocab_size), np.float32)
    targets = np.empty((len(starts), window), np.int64)
    for i, start in enumerate(tqdm(starts, desc=f"calibrate {mode}", unit="window", leave=False)):
        ids = np.asarray(tokens[start : start + window + 1], np.int64)
        logits[i] = model(torch.from_numpy(ids[None, :-1]), with_precision=False).logits[0].numpy()
        targets[i] = ids[1:]
    model.mode = previous
    return ScoredTokens(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def _calibrate_mode(fit: ScoredTokens, held_out: ScoredTokens) -> dict[str, Any]:
    temperature = fit_temperature(fit)
    raw_nll, nll = (negative_log_likelihood(held_out, t) for t in (1.0, temperature))
    generator = np.random.default_rng(SEED)

    def top(probabilities: Array) -> NDArray[np.int64]:
        return probabilities.argmax(-1)

    def sampled(probabilities: Array) -> NDArray[np.int64]:
        cumulative = probabilities.cumsum(-1, dtype=np.float64)
        drawn = generator.random((len(cumulative), 1)) * cumulative[:, -1:]
        return (cumulative < drawn).sum(-1)

    return {
        "temperature": temperature,
        "nll": nll,
        "nll_uncalibrated": raw_nll,
        "ece_top_uncalibrated": _reliability_of(held_out, 1.0, top)["ece"],
        "top": _reliability_of(held_out, temperature, top),
        "sampled": _reliability_of(held_out, temperature, sampled),
    }


def _reliability_of(
    scored: ScoredTokens, temperature: float, choose: Callable[[Array], NDArray[np.int64]]
) -> dict[str, Any]:
    confidence, correct = [], []
    for i in range(0, len(scored.targets), 1024):
        probabilities = token_probabilities(scored.logits[i : i + 1024], temperature)
        chosen = choose(probabilities)
        confidence.append(np.take_along_axis(probabilities, chosen[:, None], -1)[:, 0])
        correct.append(chosen == scored.targets[i : i + 1024])
    return reliability(np.concatenate(confidence).astype(np.float64), np.concatenate(correct))
