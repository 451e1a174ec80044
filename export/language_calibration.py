"""Calibrate a language model: the temperature of its confidence, and the remaining calibration error.

The confidence of a token is softmax(logits / T)[token] (`rfa.runtime.bundle.token_confidence`). Every second window of
the validation split is for fitting, so that all its texts contribute. These windows are divided into parts. In each
mode and part, a temperature minimises the negative log-likelihood (NLL; Guo et al. 2017, On Calibration of Modern
Neural Networks). T is their geometric mean, shrunk towards 1 as far as the parts disagree (`pooled_temperature`).

The expected calibration error (ECE) is measured on the other windows, with bins of equal mass, for the most likely
token ("top") and for a token sampled from the calibrated distribution ("sampled"). The tail table is also computed from
these windows. Some tokens are stored for checks at load (`rfa.runtime.bundle.held_out`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from tqdm import tqdm

from rfa.model.language import LanguageModel
from rfa.runtime.bundle.held_out import WINDOW, kept_rows, kept_tokens, spacing
from rfa.runtime.bundle.token_confidence import TokenConfidence, reliability, tail_table
from rfa.runtime.text.config import Mode, in_mode
from rfa.runtime.text.scores import score_tokens

Array = NDArray[np.float32]
Reals = NDArray[np.float64]

# With the default window, 65,536 tokens are evaluated. For so many tokens, a perfectly calibrated model has an ECE of
# 0.4 %.
MAX_WINDOWS = 256
# Parts with a temperature of their own. Successive windows are from the same book or its neighbour.
PARTS = 8
# Logits of a part in memory while fitting its temperature, which take 256 MiB.
MAX_LOGITS = 1 << 26
NEWTON_STEPS = 50
# Upper bound of the temperature. For an uninformative model, the best temperature is infinite.
HIGHEST_TEMPERATURE = 20.0
SEED = 0


@dataclass(frozen=True)
class ScoredTokens:
    """Predictions at n positions: the logits `[n, V]` in float32, and the actual next tokens `[n]`."""

    logits: Array
    targets: NDArray[np.int64]


@dataclass(frozen=True)
class ChosenTokens:
    """Tokens that were chosen by a rule.

    Attributes:
        log_probability: Log softmax(logits / T)[token], `[n]`.
        is_right: Whether the chosen token was the actual token, `[n]`.
    """

    log_probability: Reals
    is_right: NDArray[np.bool_]


def fit_temperature(scored: ScoredTokens) -> float:
    """Return the temperature T in [1/20, 20] that minimises the NLL. It is found by Newton's method for b = 1/T,
    because the NLL is a convex function of b."""
    inverse = 1.0
    for _ in range(NEWTON_STEPS):
        slope, curvature = _moments(scored, inverse)
        step = slope / max(curvature, 1e-12)
        # Each step changes b by at most a factor of two.
        following = float(np.clip(inverse - step, inverse / 2, inverse * 2))
        following = min(max(following, 1 / HIGHEST_TEMPERATURE), HIGHEST_TEMPERATURE)
        is_settled = abs(following - inverse) < 1e-6 * inverse
        inverse = following
        if is_settled:
            break
    return 1 / inverse


def pooled_temperature(temperatures: Sequence[float]) -> float:
    """Return the temperature for a new text, given the best temperatures of several texts.

    With t_i = log T_i and m_i the mean of the others, the result is exp(c · mean t), where c in [0, 1] minimises
    Σ (c m_i - t_i)², the error of the prediction of each text from the others. c is 0 if the texts differ from each
    other by more than from 1, and 1 if all are equal.
    """
    logs = np.log(temperatures)
    if len(logs) == 1:
        return float(temperatures[0])
    others = (logs.sum() - logs) / (len(logs) - 1)
    factor = np.clip(others @ logs / max(others @ others, np.finfo(np.float64).tiny), 0, 1)
    return float(np.exp(factor * logs.mean()))


def calibrate_language(model: LanguageModel, tokens: NDArray[Any], *, window: int = WINDOW) -> dict[str, Any]:
    """Return the content of calibration.json.

    Args:
        model: The language model.
        tokens: Token ids of the validation split. Every second window is used for fitting, and the others for
            evaluation.
        window: Number of tokens per window.

    Raises:
        ValueError: If there are fewer tokens than in two windows.
    """
    count = min(MAX_WINDOWS, (len(tokens) - 1) // window)
    if count < 2:
        raise ValueError(
            f"the validation split has {len(tokens)} tokens, but the calibration needs at least {2 * window + 1}"
        )
    starts = np.linspace(0, len(tokens) - 1 - window, count).astype(int)
    windows = tokens[starts[:, None] + np.arange(window + 1)]
    held_out, fit = (windows[start::2].astype(np.int64) for start in (0, 1))
    modes = {mode: _calibrate_mode(model, mode, fit, held_out) for mode in model.config.modes}
    return {
        "method": "temperature scaling, confidence = softmax(logits / temperature)[token]",
        "temperature": {mode: entry["temperature"] for mode, entry in modes.items()},
        "modes": modes,
        "data": {
            "split": "validation",
            "window": window,
            "fit_tokens": len(fit) * window,
            "held_out_tokens": len(held_out) * window,
            "tokens_sha256": hashlib.sha256(windows.astype("<u4").tobytes()).hexdigest(),
            "rows": {"every": spacing(held_out), "tokens": kept_tokens(held_out)},
        },
        "summary": {
            "temperature": {mode: entry["temperature"] for mode, entry in modes.items()},
            "ece_top": {mode: entry["top"]["ece"] for mode, entry in modes.items()},
            "ece_sampled": {mode: entry["sampled"]["ece"] for mode, entry in modes.items()},
            "held_out_tokens": len(held_out) * window,
        },
    }


def _moments(scored: ScoredTokens, inverse: float) -> tuple[float, float]:
    """Return the first two derivatives of the NLL with respect to b = 1/T.

    For logits z and targets y, the NLL is E[logsumexp(b z) - b z_y]. With p = softmax(b z), the derivatives are E[E_p z
    - z_y] and E[Var_p z].
    """
    totals = np.zeros(2)
    for i in range(0, len(scored.targets), 1024):
        logits, targets = scored.logits[i : i + 1024], scored.targets[i : i + 1024]
        largest = logits.max(-1, keepdims=True)
        centred = logits - largest
        weights = np.exp(centred * np.float32(inverse))
        norm = weights.sum(-1, dtype=np.float64)
        first = np.einsum("nv,nv->n", weights, centred, dtype=np.float64) / norm
        second = np.einsum("nv,nv,nv->n", weights, centred, centred, dtype=np.float64) / norm
        right = np.take_along_axis(centred, targets[:, None], -1)[:, 0].astype(np.float64)
        totals += [(first - right).sum(), np.maximum(second - first**2, 0).sum()]
    slope, curvature = totals / len(scored.targets)
    return float(slope), float(curvature)


def _passes(model: LanguageModel, windows: NDArray[np.int64], mode: Mode) -> Iterator[ScoredTokens]:
    """Yield the logits and targets of each window. The context of a token begins at the start of its window."""
    for window in tqdm(windows, desc=f"calibrate {mode}", unit="window", leave=False):
        with torch.no_grad(), in_mode(model, mode):
            logits = model(torch.from_numpy(window[None, :-1]), with_precision=False).logits[0]
        yield ScoredTokens(logits.numpy(), window[1:])


def _temperature(model: LanguageModel, windows: NDArray[np.int64], mode: Mode) -> float:
    """Return the temperature of a mode. It is pooled from temperatures that are fitted to each part, on as many evenly
    spaced windows as `MAX_LOGITS` allows."""
    most = max(1, MAX_LOGITS // (windows[0, 1:].size * model.config.vocab_size))
    found = []
    for part in np.array_split(windows, min(PARTS, len(windows))):
        scored = list(_passes(model, part[:: -(-len(part) // most)], mode))
        logits, targets = (np.concatenate(rows) for rows in zip(*((p.logits, p.targets) for p in scored), strict=True))
        found.append(fit_temperature(ScoredTokens(logits, targets)))
    return pooled_temperature(found)


def _chosen(parts: Iterable[ScoredTokens], temperatures: tuple[float, ...]) -> list[dict[str, ChosenTokens]]:
    """Return the tokens that each rule chooses at each temperature. The rules are "top" (the most probable token),
    "sampled", and "next" (the actual next token)."""
    generator = np.random.default_rng(SEED)
    found: list[dict[str, list[ChosenTokens]]] = [{"top": [], "sampled": [], "next": []} for _ in temperatures]
    for part in parts:
        for temperature, lists in zip(temperatures, found, strict=True):
            logs = log_softmax(part.logits / np.float32(temperature), axis=-1)
            cumulative = np.exp(logs).cumsum(-1, dtype=np.float64)
            drawn = generator.random((len(logs), 1)) * cumulative[:, -1:]
            rules = {"top": logs.argmax(-1), "sampled": (cumulative < drawn).sum(-1), "next": part.targets}
            for rule, tokens in rules.items():
                log_probability = np.take_along_axis(logs, tokens[:, None], -1)[:, 0].astype(np.float64)
                lists[rule].append(ChosenTokens(log_probability, tokens == part.targets))
    return [{rule: _joined(tokens) for rule, tokens in lists.items()} for lists in found]


def _add_tails(parts: Iterable[ScoredTokens], temperature: float, tails: list[Reals]) -> Iterator[ScoredTokens]:
    """Yield the parts unchanged. Append the tail probabilities of their tokens under the model to `tails`."""
    for part in parts:
        tails.append(score_tokens(part.logits, part.targets.tolist(), np.float32(temperature), 0).tail)
        yield part


def _joined(parts: Iterable[ChosenTokens]) -> ChosenTokens:
    pairs = ((part.log_probability, part.is_right) for part in parts)
    return ChosenTokens(*(np.concatenate(arrays) for arrays in zip(*pairs, strict=True)))


def _calibrate_mode(
    model: LanguageModel, mode: Mode, fit: NDArray[np.int64], held_out: NDArray[np.int64]
) -> dict[str, Any]:
    """Fit the calibration of a mode on `fit`, evaluate it on `held_out`, and return its entry in calibration.json. Both
    arrays contain windows of tokens, `[N, window + 1]`."""
    temperature = _temperature(model, fit, mode)
    tails: list[Reals] = []
    raw, scaled = _chosen(_add_tails(_passes(model, held_out, mode), temperature, tails), (1.0, temperature))
    confidence = TokenConfidence(temperature)
    return {
        "temperature": temperature,
        "nll": -float(scaled["next"].log_probability.mean()),
        "nll_uncalibrated": -float(raw["next"].log_probability.mean()),
        "ece_top_uncalibrated": reliability(np.exp(raw["top"].log_probability), raw["top"].is_right)["ece"],
        **{
            rule: reliability(confidence(scaled[rule].log_probability), scaled[rule].is_right)
            for rule in ("top", "sampled")
        },
        "tails": tail_table(np.concatenate(tails)),
        "rows": kept_rows(confidence(scaled["top"].log_probability), scaled["top"].is_right, held_out),
    }
