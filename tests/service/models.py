"""Models to test the service with: behind the engine's interfaces, and every number can be worked out by hand."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rfa.runtime.bundle.token_confidence import TokenConfidence
from rfa.runtime.choices import Mode
from rfa.runtime.errors import InvalidInput, invalid_state
from rfa.runtime.outputs import FilterStep, ForecastPoint
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import PoolSlot, StateField, StatePool
from rfa.runtime.text.contexts import StepOutput
from rfa.runtime.text.incremental import Vocabulary
from rfa.runtime.text.language import Language
from rfa.runtime.uncertainty.alarms import Alarm
from rfa.runtime.uncertainty.forecast_checks import (
    INSIDE,
    NIS,
    OBSERVATIONS,
    PIT,
    PIT_BINS,
    SCORED,
    WEIGHTED_NIS,
    no_checks,
)
from rfa.runtime.uncertainty.incidents import Incidents
from rfa.runtime.uncertainty.input import level_name
from rfa.runtime.uncertainty.interface import FilterOptions, ReadoutOptions, Row, Stepped
from rfa.runtime.uncertainty.rules import LAST_NUMBERS
from rfa.service.engine.models import Models
from rfa.service.schemas.server_replies import Kind, ModelInfo

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
    runtime: str = "fake"
    modes: tuple[Mode, ...] = ("attention", "recurrent")
    sureness: float = 0.9
    poison: str | None = None
    bomb: str | None = None
    gate: threading.Semaphore | None = None
    vocabulary: Vocabulary = field(default_factory=byte_vocabulary)
    latent_shape: tuple[int, int] = (2, 4)
    context_bytes: int = 100_000
    cache_bytes: int = 0
    pool: StatePool = field(default_factory=lambda: StatePool({"seen": StateField((), np.float64)}, 1))
    prefill_tokens: int = 64
    prefill_rows: int = 1
    passes: PassesRange = field(default_factory=partial(PassesRange, 1, 1))
    batches: list[int] = field(default_factory=list)
    read: list[list[int]] = field(default_factory=list)  # tokens of each prompt, of every call

    @property
    def default_mode(self) -> Mode:
        return self.modes[-1]

    def start(
        self, mode: str, *, capacity: int = 1, forks: int = 0, common: int = 0, passes: int | None = None
    ) -> Seen:
        assert mode in self.modes
        return Seen()

    def fits(self, capacity: int, streams: int, common: int) -> bool:
        return True

    def prefill(self, contexts: Sequence[Seen], pieces: Sequence[Sequence[int]]) -> list[SeenMore]:
        self.read.append([len(piece) for piece in pieces])
        return [
            SeenMore(context, (*context.tokens, *piece), context.noise)
            for context, piece in zip(contexts, pieces, strict=True)
        ]

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
        latent = np.arange(8, dtype=np.float32).reshape(self.latent_shape) + noise  # of a row, whatever the batch is
        return StepOutput(logits, np.zeros(len(contexts), dtype=np.float32), latent), advanced

    draw = Language.draw
    peek = Language.peek
    logits_of = Language.logits_of
    scores_in_one_pass = True

    def pack(self, context: Seen) -> bytes:
        return np.float64(context.noise).tobytes() + np.asarray(context.tokens, dtype="<u4").tobytes()

    def unpack(self, data: bytes, passes: int | None = None) -> Seen:
        if len(data) % 4 or len(data) < 8:
            raise invalid_state()
        return Seen(tuple(np.frombuffer(data, "<u4", offset=8).tolist()), float(np.frombuffer(data, "<f8", 1)[0]))

    def confidence(self, mode: str) -> TokenConfidence:
        return TokenConfidence(1.0)


def slow_down(owner: Any, method: str, seconds: float) -> None:
    """Have a method take longer."""
    call = getattr(owner, method)

    def slowly(*arguments: Any) -> Any:
        time.sleep(seconds)
        return call(*arguments)

    setattr(owner, method, slowly)


@dataclass(frozen=True)
class Means:
    """State of the fake filter: sum and number of what was seen of each component."""

    sums: np.ndarray
    seen: np.ndarray
    time: float = 0.0
    count: int = 0
    seed: int = 0
    step: float = 0.0

    @property
    def adaptive(self) -> dict[str, np.ndarray]:
        """State of alarms, which the fake does not raise: times of the last values, which are unknown."""
        return {"alarm.last": np.full((len(self.sums), LAST_NUMBERS), np.nan)}


@dataclass
class Result:
    log_likelihood: float
    state: Means
    smoothed: list[dict[str, Any]] | None
    tally: np.ndarray
    incidents: Incidents
    is_cut: bool = False


@dataclass(frozen=True)
class Requested:
    """What a request of the fake filter wants to be told."""

    levels: tuple[float, ...]
    horizon: tuple[float, ...]
    samples: int
    passes: int = 1


@dataclass
class FakeFilter:
    """A running mean of each component, with unit errors; log-likelihood 1 per observation seen.

    The mean is the forecast of the next observation, its interval of a level is the mean ± the level, and the weighted
    nis is 2; what is above it is in the last bin of the PIT, all else in the first.

    An observation of `poison` makes the numbers NaN; one of `bomb` makes every step that it takes part in raise.
    """

    name: str = "mean"
    observation_size: int = 2
    state_size: int = 2
    levels: tuple[float, ...] = (0.5, 0.9)
    passes: PassesRange = field(default_factory=partial(PassesRange, 1, 1))
    poison: float | None = None
    bomb: float | None = None
    gate: threading.Semaphore | None = None
    batches: list[int] = field(default_factory=list)

    own_bytes = kept_bytes = covariates = 0
    suits_any = False
    farthest = math.inf

    @property
    def label(self) -> str:
        return self.name

    def sized(self, size: int) -> FakeFilter:
        return self

    @property
    def state_fields(self) -> dict[str, StateField]:
        size = (self.observation_size,)
        return {
            "sums": StateField(size, np.float64),
            "seen": StateField(size, np.int64),
            "time": StateField((), np.float64),
            "count": StateField((), np.int64),
        }

    @property
    def state_bytes(self) -> int:
        return 16 * self.observation_size + 24

    def start(self, seed: int = 0) -> Means:
        return Means(np.zeros(self.observation_size), np.zeros(self.observation_size, np.int64), seed=seed)

    def put(self, pool: StatePool, pool_slot: PoolSlot, state: Means) -> None:
        pool.write(pool_slot, {"sums": state.sums, "seen": state.seen, "time": state.time, "count": state.count})

    def get(self, pool: StatePool, pool_slot: PoolSlot, seed: int) -> Means:
        values = pool.read(pool_slot)
        return Means(values["sums"], values["seen"], float(values["time"]), int(values["count"]), seed)

    def pack(self, state: Means) -> bytes:
        return (
            struct.pack("<dQQ", state.time, state.count, state.seed)
            + state.sums.astype("<f8").tobytes()
            + state.seen.astype("<i8").tobytes()
        )

    def unpack(self, data: bytes) -> Means:
        if len(data) != self.state_bytes:
            raise invalid_state()
        time, count, seed = struct.unpack_from("<dQQ", data)
        sums = np.frombuffer(data, "<f8", self.observation_size, 24)
        return Means(sums, np.frombuffer(data, "<i8", offset=24 + sums.nbytes), time, count, seed)

    def readout(
        self,
        levels: tuple[float, ...],
        horizon: tuple[float, ...],
        samples: int,
        options: ReadoutOptions = ReadoutOptions(),  # noqa: B008 - a constant
    ) -> Requested:
        assert options == ReadoutOptions(utc_offsets=options.utc_offsets)  # the mean has no days
        if any(level not in self.levels for level in levels):
            raise InvalidInput("levels must be calibrated ones", param="levels", code="level_not_calibrated")
        return Requested(levels, horizon, samples)

    def check_input(self, alarm: Alarm, state: Any, *, is_given: bool) -> None:
        assert not is_given

    piece_rows = 1
    experts = ()

    def weight(self, reported: int, t: float, kept: Any) -> int:
        """As a filter whose observations all cost the same."""
        return reported

    def advance(self, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
        self.batches.append(len(rows))
        pool.rows([row.slot for row in rows])
        if any(self.bomb in (row.observation or ()) for row in rows if self.bomb is not None):
            raise RuntimeError("the graph failed at /secret/place")
        stepped: list[Stepped | None] = []
        for row in rows:
            before = self.get(pool, row.slot, row.seed)
            step, state = self._observe(before, row.t, row.observation, row.readout)
            if not np.isfinite(state.sums).all():
                stepped.append(None)
                continue
            self.put(pool, row.slot, state)
            stepped.append(
                Stepped(step, float(row.observation is not None), self._check(before, row.observation, row.readout))
            )
        return stepped

    def work(self, options: FilterOptions, deadline: float = math.inf) -> Generator[FilterStep, None, Result]:
        requested = self.readout(options.levels, options.horizon, options.samples)
        state, steps = options.state or self.start(options.seed), []
        sums = no_checks(len(self.levels), len(options.horizon), self.observation_size)
        observations: list[Any] = [
            None if np.isnan(row).all() else [None if math.isnan(value) else value for value in row.tolist()]
            for row in options.observations
        ]
        smooth = options.smooth
        for t, observation in zip(options.times.tolist(), observations, strict=True):
            sums += self._check(state, observation, requested)
            step, state = self._observe(state, t, observation, requested)
            steps.append(step)
            yield step
        smoothed = [{"index": s.index, "t": s.t, "mean": s.mean, "std": s.std} for s in steps] if smooth else None
        return Result(float(sum(y is not None for y in observations)), state, smoothed, sums, Incidents.empty())

    def check_merges(self) -> None:
        """Means could be merged; no test does."""

    def _check(self, before: Means, observation: Sequence[float | None] | None, requested: Any) -> np.ndarray:
        sums = no_checks(len(self.levels), len(requested.horizon), self.observation_size)
        mean = before.sums / np.maximum(before.seen, 1)
        errors = [y - m for y, m in zip(observation or (), mean.tolist(), strict=False) if y is not None]
        if before.count and errors:
            sums[OBSERVATIONS], sums[WEIGHTED_NIS], sums[SCORED] = 1, 2, len(errors)
            sums[NIS] = [0, 0, 0, 0, 1, 0, 0, 0]
            sums[INSIDE][: len(self.levels)] = [sum(abs(error) <= level for error in errors) for level in self.levels]
            each = sums[-self.observation_size * (1 + len(self.levels)) :].reshape(self.observation_size, -1)
            for own, y, m in zip(each, observation or (), mean.tolist(), strict=True):
                own[:] = 0 if y is None else [1, *(abs(y - m) <= level for level in self.levels)]
            above = sum(error > 0 for error in errors)
            sums[PIT] = [len(errors) - above, *[0] * (PIT_BINS - 2), above]
        return sums

    def _observe(
        self, state: Means, t: float, observation: Sequence[float | None] | None, requested: Any
    ) -> tuple[FilterStep, Means]:
        if self.gate is not None:
            self.gate.acquire()
        sums, seen = state.sums.copy(), state.seen.copy()
        for index, value in enumerate(observation or ()):
            if value is not None:
                sums[index] += math.nan if value == self.poison else value
                seen[index] += 1
        mean = (sums / np.maximum(seen, 1)).tolist()
        interval = {level_name(level): [[value - level, value + level] for value in mean] for level in requested.levels}
        step = FilterStep(
            state.count, t, mean, [1.0] * len(mean), 1.0, 0.9, None if observation is None else 1.0,
            observation if observation is None else list(observation), None, None, None, None, interval,
            [ForecastPoint(t + h, mean, mean, [1.0] * len(mean), interval) for h in requested.horizon],
            np.array([mean] * requested.samples),
        )  # fmt: skip
        return step, Means(sums, seen, t, state.count + 1, state.seed)


def model_info(name: str, kind: Kind, digest: str, modes: tuple[Mode, ...] = ("attention", "recurrent")) -> ModelInfo:
    """What is told of a model that no bundle holds."""
    return ModelInfo(name, kind, digest, 1, "onnx", modes, config={}, metrics={}, calibration={})


def fake_models(language: FakeLanguage | None = None, filter: FakeFilter | None = None) -> Models:
    """One language model and one filter."""
    language, filter = language or FakeLanguage(), filter or FakeFilter()
    return Models(
        {language.name: cast(Any, language)},
        {filter.name: cast(Any, filter)},
        [model_info(language.name, "lm", "0" * 64, language.modes), model_info(filter.name, "filter", "1" * 64)],
    )
