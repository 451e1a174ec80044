"""Models to test the service with: behind the engine's interfaces, and every number can be worked out by hand."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from service.engine.engine import ModelFacts, Models
from service.engine.filter_runtime import FilterInputError
from service.engine.language_runtime import StepOutput
from service.engine.language_state import unusable_state
from service.engine.text import Vocabulary

END_OF_TEXT = "<|endoftext|>"


def byte_vocabulary(merges: Sequence[tuple[str, str]] = ()) -> Vocabulary:
    """One token per byte, an end of text, and the merges given."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [END_OF_TEXT, *alphabet, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return Vocabulary(tokenizer.to_str())


@dataclass
class Seen:
    """Context of the fake: all tokens so far, and the sum of the latent noise."""

    tokens: tuple[int, ...] = ()
    noise: float = 0.0
    is_released: bool = False

    @property
    def position(self) -> int:
        return len(self.tokens)

    def fork(self) -> Seen:
        return Seen(self.tokens, self.noise)

    def release(self) -> None:
        assert not self.is_released, "released twice"
        self.is_released = True


@dataclass(frozen=True)
class SeenMore:
    """What a context of the fake becomes."""

    context: Seen
    tokens: tuple[int, ...]
    noise: float

    def is_finite(self) -> bool:
        return bool(np.isfinite(self.noise))

    def commit(self) -> None:
        assert not self.context.is_released
        self.context.tokens, self.context.noise = self.tokens, self.noise


@dataclass
class FakeLanguage:
    """Recites a script: k tokens after the last `|` its token k is likely; without a `|` always the first.

    The probability of the scripted token is `sureness`, the rest is shared evenly. A text that contains `poison` makes
    its own row NaN; one that contains `bomb` makes every step that it takes part in raise.
    """

    script: str = "the quick brown fox"
    name: str = "recite"
    sureness: float = 0.9
    poison: str | None = None
    bomb: str | None = None
    gate: threading.Semaphore | None = None
    vocabulary: Vocabulary = field(default_factory=byte_vocabulary)
    latent_shape: tuple[int, int] = (2, 4)
    context_bytes: int = 100_000
    batches: list[int] = field(default_factory=list)

    def start(self, decode: str) -> Seen:
        return Seen()

    def prefill(self, context: Seen, tokens: Sequence[int]) -> SeenMore:
        return SeenMore(context, (*context.tokens, *tokens), context.noise)

    def step(
        self, contexts: Sequence[Seen], tokens: Sequence[int], noise: np.ndarray
    ) -> tuple[StepOutput, list[SeenMore]]:
        if self.gate is not None:
            self.gate.acquire()
        self.batches.append(len(contexts))
        size, script = len(self.vocabulary), [*self.vocabulary.encode(self.script), self.vocabulary.end_of_text]
        logits = np.full((len(contexts), size), np.log((1 - self.sureness) / (size - 1)), dtype=np.float32)
        bar = self.vocabulary.encode("|")[0]
        advanced = []
        for row, (context, token) in enumerate(zip(contexts, tokens, strict=True)):
            seen = SeenMore(context, (*context.tokens, token), context.noise + float(noise[row].sum()))
            text = b"".join(self.vocabulary.bytes_of(index) for index in seen.tokens).decode(errors="replace")
            if self.bomb is not None and self.bomb in text:
                raise RuntimeError("the graph failed at /secret/place")
            said = seen.tokens[::-1].index(bar) if bar in seen.tokens else 0
            logits[row, script[min(said, len(script) - 1)]] = np.log(self.sureness)
            if self.poison is not None and self.poison in text:
                logits[row] = np.nan
            advanced.append(seen)
        latent = np.arange(len(contexts) * 8, dtype=np.float32).reshape(-1, *self.latent_shape) + noise
        return StepOutput(logits, np.zeros(len(contexts), dtype=np.float32), latent), advanced

    def pack(self, context: Seen) -> bytes:
        return np.float64(context.noise).tobytes() + np.asarray(context.tokens, dtype="<u4").tobytes()

    def unpack(self, data: bytes) -> Seen:
        if len(data) % 4 or len(data) < 8:
            raise unusable_state()
        return Seen(tuple(np.frombuffer(data, "<u4", offset=8).tolist()), float(np.frombuffer(data, "<f8", 1)[0]))

    def confidence(self, logits: np.ndarray, decode: str) -> np.ndarray:
        weights = np.exp(logits.astype(np.float64))
        return weights / weights.sum(axis=-1, keepdims=True)


@dataclass
class Step:
    """The step of a reply."""

    index: int
    t: float
    mean: list[float]
    std: list[float]
    precision: float
    confidence: float
    weight: float | None
    innovation: list[float | None] | None
    nis: float | None
    anomaly: float | None
    interval: dict[str, list[list[float]]]
    forecast: list[dict[str, Any]]
    samples: list[list[float]]


@dataclass
class Result:
    steps: list[Step]
    log_likelihood: float
    state: Any
    smoothed: list[dict[str, Any]] | None


@dataclass
class FakeFilter:
    """A running mean of each component, with unit errors; log-likelihood 1 per observation seen.

    An observation of `poison` makes everything after it NaN.
    """

    name: str = "mean"
    observation_size: int = 2
    levels: tuple[float, ...] = (0.5, 0.9)
    poison: float | None = None
    gate: threading.Semaphore | None = None

    def filter(
        self,
        times: Sequence[float],
        observations: Sequence[Sequence[float | None] | None],
        *,
        noise: Sequence[float | None] | None,
        levels: Sequence[float],
        horizon: Sequence[float],
        samples: int,
        seed: int,
        mode: str,
        smooth: bool,
        state: Any,
    ) -> Result:
        for level in levels:
            if level not in self.levels:
                raise FilterInputError("levels must be calibrated ones", "levels", "level_not_calibrated")
        count, sums, seen = state or (0, [0.0] * self.observation_size, [0] * self.observation_size)
        sums, seen, steps, likelihood = list(sums), list(seen), [], 0.0
        for t, observation in zip(times, observations, strict=True):
            if self.gate is not None:
                self.gate.acquire()
            for index, value in enumerate(observation or ()):
                if value is not None:
                    sums[index] += math.nan if value == self.poison else value
                    seen[index] += 1
            likelihood += observation is not None
            mean = [total / max(n, 1) for total, n in zip(sums, seen, strict=True)]
            interval = {f"{level:g}": [[value - level, value + level] for value in mean] for level in levels}
            steps.append(
                Step(
                    count, t, mean, [1.0] * len(mean), 1.0, 0.9, None if observation is None else 1.0,
                    observation if observation is None else list(observation), None, None, interval,
                    [{"t": t + h, "mean": mean, "std": [1.0] * len(mean), "interval": interval} for h in horizon],
                    [mean] * samples,
                )
            )  # fmt: skip
            count += 1
        smoothed = [{"index": s.index, "t": s.t, "mean": s.mean, "std": s.std} for s in steps] if smooth else None
        return Result(steps, likelihood, (count, sums, seen), smoothed)


def fake_models(language: FakeLanguage | None = None, filter: FakeFilter | None = None) -> Models:
    """One language model and one filter."""
    language, filter = language or FakeLanguage(), filter or FakeFilter()
    return Models(
        {language.name: language},
        {filter.name: filter},
        [ModelFacts(language.name, "lm", "0" * 64, 1), ModelFacts(filter.name, "filter", "1" * 64, 1)],
    )
