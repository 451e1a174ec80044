"""Whether anything that a language model has at a step tells more of a token than the softmax does.

Windows of a test text that the bundle has not seen, each from nothing, in both modes. What is told: whether the most
likely token came, and the loss of the token that came. By the softmax alone (`BASELINES`), and by it together with
each signal of `rfa.benchmarks.language.evidence`, in regressions fitted on the validation text:

    log_loss, brier, auroc     of a logistic regression of being right
    explained                  share of the variance of the loss, of a linear regression

A gain is what the signal adds to the baseline, positive where it helps. Tokens of one text are not independent:
intervals, of 95 %, take windows for the independent unit, and each book's own gain in log loss stands beside.

The paths are also taken as a model: the loss of their mixture beside that of the mean path, each as it is and at the
temperature that suits it best.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.language.discrimination import Auroc, Claims, Reals, auroc, fit_linear, fit_logistic, with_interval
from rfa.benchmarks.language.evidence import evidence_of
from rfa.export.language_calibration import WINDOW, ScoredTokens, fit_temperature
from rfa.export.loading import load_model
from rfa.measured import origin
from rfa.model.language import LanguageModel
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.text.config import LanguageModelConfig, Mode
from rfa.training.corpus import encode_files, file_hashes, split_files
from rfa.training.evaluate.confidence import spread_windows, unseen_files

TOKENS = 65_536  # of each split
TEMPERATURE_WINDOWS = 32  # of the validation text, for which logits are held
PATHS = 16
SEED = 0
# name → features of the softmax, with their squares and products.
BASELINES: dict[str, tuple[str, ...]] = {"entropy": ("entropy",), "softmax": ("log_probability", "log_odds", "entropy")}


@dataclass(frozen=True)
class Watched:
    """What one mode said at the n places of some windows.

    Attributes:
        softmax: features of the softmax, by name, `[n]`.
        signals: by name, `[n, k]`.
        is_right: whether the most likely token came, `[n]`.
        nats: loss of the token that came, of the mean path and of the mixture, each as it is, and scaled if
            temperatures were given, `[n]`.
        window: `[n]`.
    """

    softmax: dict[str, Reals]
    signals: dict[str, Reals]
    is_right: Claims
    nats: dict[str, Reals]
    window: NDArray[np.int64]


def watch(
    model: LanguageModel, windows: NDArray[np.int64], mode: Mode, temperatures: dict[str, float], paths: int = PATHS
) -> Watched:
    """Windows of tokens `[windows, length + 1]`; temperatures: of "mean" and "mixture"."""
    generator = torch.Generator().manual_seed(SEED)
    parts: list[dict[str, NDArray[Any]]] = []
    for ids in tqdm(windows, desc=f"watch {mode}", unit="window", leave=False):
        tokens, targets = torch.from_numpy(ids[:-1]), torch.from_numpy(ids[1:, None])
        seen = evidence_of(model, tokens, mode, paths=paths, generator=generator)
        logs = torch.log_softmax(seen.logits.double(), -1)
        top = logs.amax(-1)
        found = {
            "log_probability": top,
            "log_odds": top - torch.log(-torch.expm1(top).clamp_max(-1e-12)),
            "entropy": -(logs.exp() * logs).sum(-1),
            "is_right": seen.logits.argmax(-1) == targets[:, 0],
            **{f"signal {name}": part.double().reshape(len(tokens), -1) for name, part in seen.signals.items()},
        }
        for name, scores in (("mean", seen.logits), ("mixture", seen.mixture)):
            for stage, temperature in (("as it is", 1.0), ("scaled", temperatures[name])):
                scaled = torch.log_softmax(scores.double() / temperature, -1)
                found[f"nats {name}, {stage}"] = -scaled.gather(-1, targets)[:, 0]
        parts.append({name: part.numpy() for name, part in found.items()})
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def named(prefix: str) -> dict[str, NDArray[Any]]:
        return {name.removeprefix(prefix): part for name, part in joined.items() if name.startswith(prefix)}

    return Watched(
        {name: joined[name] for name in BASELINES["softmax"]},
        named("signal "),
        joined["is_right"],
        named("nats "),
        np.repeat(np.arange(len(windows)), windows.shape[1] - 1),
    )


def path_temperatures(model: LanguageModel, windows: NDArray[np.int64], mode: Mode) -> dict[str, float]:
    """Of least loss, of the mean path and of the mixture."""
    generator = torch.Generator().manual_seed(SEED)
    seen = [
        evidence_of(model, torch.from_numpy(ids[:-1]), mode, paths=PATHS, generator=generator)
        for ids in tqdm(windows, desc=f"temperatures {mode}", unit="window", leave=False)
    ]
    targets = windows[:, 1:].ravel()
    logits = {"mean": [part.logits for part in seen], "mixture": [part.mixture for part in seen]}
    return {name: fit_temperature(ScoredTokens(torch.cat(parts).numpy(), targets)) for name, parts in logits.items()}


def gains(fit: Watched, test: Watched, book: NDArray[np.int64]) -> dict[str, Any]:
    """What each baseline tells of the test text, and what each signal adds to it; book: of each token `[n]`."""
    found: dict[str, Any] = {}
    for name in BASELINES:
        base = _told(fit, test, name, None)
        found[name] = {"log_loss": float(base.log_loss.mean()), "brier": float(base.brier.mean())}
        found[name] |= {"auroc": base.auroc.value, "explained": float(1 - base.squares.mean())}
        found[name]["gains"] = {
            signal: _gain(base, _told(fit, test, name, signal), test.window, book) for signal in test.signals
        }
    return found


@dataclass(frozen=True)
class _Told:
    """How well each token was told: losses `[n]`, squares in units of the variance of the token's loss."""

    log_loss: Reals
    brier: Reals
    squares: Reals
    auroc: Auroc


def _told(fit: Watched, test: Watched, baseline: str, signal: str | None) -> _Told:
    before, after = (_design(seen, baseline, signal) for seen in (fit, test))
    odds = fit_logistic(before, fit.is_right)(after)
    expected = fit_linear(before, fit.nats["mean, as it is"])(after)
    log_loss = np.logaddexp(0, np.where(test.is_right, -odds, odds))
    brier = (1 / (1 + np.exp(-odds)) - test.is_right) ** 2
    nats = test.nats["mean, as it is"]
    return _Told(log_loss, brier, (nats - expected) ** 2 / nats.var(), auroc(odds, test.is_right))


def _design(seen: Watched, baseline: str, signal: str | None) -> Reals:
    """`[n, k]`: the baseline's features with their squares and products; of a single number also its square and its
    product with the entropy."""
    base = np.column_stack([seen.softmax[name] for name in BASELINES[baseline]])
    first, second = np.triu_indices(base.shape[1])
    columns = [base, base[:, first] * base[:, second]]
    if signal is not None:
        part = seen.signals[signal]
        columns.append(part)
        if part.shape[1] == 1:
            columns += [part**2, part * seen.softmax["entropy"][:, None]]
    return np.column_stack(columns)


def _gain(base: _Told, more: _Told, window: NDArray[np.int64], book: NDArray[np.int64]) -> dict[str, Any]:
    def mean_of(parts: Reals) -> dict[str, Any]:
        value = float(parts.mean())
        return with_interval(value, (parts - value) / len(parts), window)

    saved = base.log_loss - more.log_loss
    return {
        "log_loss": mean_of(saved),
        "log_loss_by_book": [float(saved[book == i].mean()) for i in range(int(book.max()) + 1)],
        "brier": mean_of(base.brier - more.brier),
        "auroc": with_interval(
            more.auroc.value - base.auroc.value, more.auroc.influence - base.auroc.influence, window
        ),
        "explained": mean_of(base.squares - more.squares),
    }


def mixture_part(test: Watched, temperatures: dict[str, float]) -> dict[str, Any]:
    """Loss of the mean path and of the mixture, and what the mixture saves, as it is and scaled."""
    saved = {}
    for stage in ("as it is", "scaled"):
        parts = test.nats[f"mean, {stage}"] - test.nats[f"mixture, {stage}"]
        value = float(parts.mean())
        saved[stage] = with_interval(value, (parts - value) / len(parts), test.window)
    nats = {name: float(part.mean()) for name, part in test.nats.items()}
    return {"temperature": temperatures, "nats_per_token": nats, "saved": saved}


def path_cost(config: LanguageModelConfig) -> float:
    """Multiplications of one more path, in those of a whole recurrent step without its slots."""
    heads = config.n_heads * 2 * config.head_dim
    feed_forward, head = 2 * config.mlp_ratio * config.d_model**2, config.vocab_size * config.d_model
    gates = 2 * config.n_heads * config.n_slots * config.d_model
    layer = 4 * heads * config.d_model + gates + feed_forward
    return (heads * config.d_model + feed_forward + head) / (config.n_layers * layer + head)


def report(path: Path, data: Path, *, limit: int = TOKENS) -> dict[str, Any]:
    """The whole measurement of a language bundle on a corpus with `valid` and `test`.

    Args:
        limit: tokens of each split.
    """
    bundle, model = open_bundle(path), load_model(path).eval().requires_grad_(False)
    files = {"valid": split_files(data, "valid"), "test": unseen_files(bundle, data)}
    tokenizer = Tokenizer.from_str(bundle.read("tokenizer.json").decode())
    books = {
        split: [spread_windows(encode_files(tokenizer, [file]), limit // len(part)) for file in part]
        for split, part in files.items()
    }
    windows = {split: np.concatenate(parts) for split, parts in books.items()}
    length = windows["test"].shape[1] - 1
    book = np.repeat(np.arange(len(files["test"])), [len(part) * length for part in books["test"]])
    modes = {}
    for mode in model.config.modes:
        chosen = windows["valid"][:: -(-len(windows["valid"]) // TEMPERATURE_WINDOWS)]
        temperatures = path_temperatures(model, chosen, mode)
        seen = {split: watch(model, part, mode, temperatures) for split, part in windows.items()}
        test = seen["test"]
        alone = {name: _alone(seen["valid"], test, name) for name in test.signals}
        modes[mode] = {
            "is_wrong": float(1 - test.is_right.mean()),
            "precision_with_place": float(
                np.corrcoef(test.signals["precision"][:, 0], test.signals["place"][:, 0])[0, 1]
            ),
            "alone": alone,
            "baselines": gains(seen["valid"], test, book),
            "mixture": mixture_part(test, temperatures),
        }
    return {
        **origin("python -m rfa.benchmarks.language.uncertainty"),
        "bundle": {"name": bundle.name, "digest": bundle.digest},
        "data": {split: file_hashes(part) for split, part in files.items()},
        "books": [file.name for file in files["test"]],
        "window": WINDOW,
        "tokens": {split: part[:, 1:].size for split, part in windows.items()},
        "paths": PATHS,
        "path_cost": path_cost(model.config),
        "modes": modes,
    }


def _alone(fit: Watched, test: Watched, name: str) -> float:
    """AUROC of a signal by itself."""
    told = fit_logistic(fit.signals[name], fit.is_right)(test.signals[name])
    return auroc(told, test.is_right).value


def main() -> None:
    """`python -m rfa.benchmarks.language.uncertainty bundles/books --data CORPUS --out FILE`."""
    options = parser(__doc__, "token-uncertainty", needs_data=True)
    options.add_argument("bundle", type=Path)
    options.add_argument("--limit", type=int, default=TOKENS, help="at most so many tokens of each split")
    given = options.parse_args()
    finish("token-uncertainty", given.out, report(given.bundle, given.data, limit=given.limit))


if __name__ == "__main__":
    main()
