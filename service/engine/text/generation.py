"""A generate request at work: read the prompt in pieces, then one token of every live stream per step.

The last prompt token is not part of the prefill: it is the first token that a step takes. So every logit that is
sampled from comes from the same graph, with its latent noise, and a stream is always (context, pending token).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rfa.export.token_confidence import TokenConfidence
from rfa.service.encoding import Blocks
from rfa.service.engine.scheduler import Job
from rfa.service.engine.text.incremental import TextStream, Vocabulary
from rfa.service.engine.text.prompt import PromptReader
from rfa.service.engine.text.sampling import (
    draw_index,
    filtered_probabilities,
    generator,
    log_normaliser,
    most_probable,
)
from rfa.service.engine.text.state import LanguageState
from rfa.service.errors import EngineFailure, InvalidRequest, NotReady
from rfa.service.metrics import Metrics
from rfa.service.runtime.language import Advance, Decode, Language
from rfa.service.schemas.replies import FinishReason, GenerateTimings, Token, TopToken

PREFILL_TOKENS = 64  # per quantum: long enough to be efficient, short enough not to stall running streams
LONG_PROMPT = 1_000  # characters; prompts beyond take turns with shorter ones, which therefore never wait for them


@dataclass(frozen=True)
class FieldNames:
    """What a request calls the fields that can be refused; `whole` is what its reply's size is the fault of."""

    prompt: str = "inputs"
    max_new_tokens: str = "parameters.max_new_tokens"
    truncate: str = "parameters.truncate"
    whole: str = "parameters"


@dataclass(frozen=True)
class GenerateOptions:
    """What to generate, complete: no default depends on the model any more.

    Args:
        prompt: text, or tokens of the model's vocabulary.
    """

    prompt: str | tuple[int, ...]
    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    is_sampled: bool = False
    stops: tuple[str, ...] = ()
    top_n_tokens: int = 0
    return_full_text: bool = False
    truncate: int | None = None
    decode: Decode = "recurrent"
    latent_noise: float = 0.0
    samples: int = 1
    return_latents: bool = False
    deadline_ms: int | None = None
    is_streamed: bool = False
    resumed: LanguageState | None = None
    returns_state: bool = False
    names: FieldNames = FieldNames()


@dataclass(frozen=True)
class PromptLimits:
    """Tokens that a prompt, and a prompt with its continuation in attention mode, may have."""

    prompt_tokens: int
    attention_tokens: int

    def wanted(self, options: GenerateOptions) -> int:
        """Tokens to read from the end of a prompt: those that are kept, or one more than there may be."""
        most = self.prompt_tokens + 1
        return most if options.truncate is None else min(options.truncate, most)

    def check_size(self, options: GenerateOptions, longest_token: int) -> None:
        """Refuse a prompt that has too many tokens whatever they are, before the first one is looked for.

        Args:
            longest_token: bytes of the longest token of the model; so many at most become one.

        Raises:
            InvalidRequest: `prompt_too_long`.
        """
        prompt = options.prompt
        least = len(prompt) if not isinstance(prompt, str) else -(-len(prompt.encode()) // longest_token)
        if options.truncate is not None:
            least = min(least, options.truncate)
        if least > self.prompt_tokens:
            raise self.too_long(options.names)

    def too_long(self, names: FieldNames) -> InvalidRequest:
        """The refusal of a prompt."""
        message = (
            f"{names.prompt} must not have more than {self.prompt_tokens} tokens; {names.truncate} keeps the last ones."
        )
        return InvalidRequest(message, param=names.prompt, code="prompt_too_long")


class TopTokens(Blocks):
    """The most probable tokens at a position: numbers, until they are told. As records they take ten times as much."""

    __slots__ = ("_ids", "_logprobs", "_vocabulary")

    def __init__(self, ids: Sequence[int], logprobs: Sequence[float], vocabulary: Vocabulary) -> None:
        self._ids = np.array(ids, np.int32)
        self._logprobs = np.array(logprobs, np.float64)
        self._vocabulary = vocabulary

    def __iter__(self) -> Iterator[TopToken]:
        known = self._vocabulary
        for token, logprob in zip(self._ids.tolist(), self._logprobs.tolist(), strict=True):
            yield TopToken(token, known.label(token), logprob, known.is_special(token))

    @property
    def is_short(self) -> bool:
        return True

    def blocks(self) -> Iterator[list[Any]]:
        yield list(self)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What one step gave to one continuation."""

    index: int
    sample: int
    token: Token
    top_tokens: TopTokens | None
    latent: NDArray[np.float32] | None  # [H, 2D]


@dataclass(frozen=True)
class FinishedText:
    """One finished continuation."""

    text: str
    finish_reason: FinishReason
    events: list[TokenEvent]


@dataclass(frozen=True)
class Generation:
    """A finished request. `last` is the token that ended it; it was not emitted before."""

    last: TokenEvent | None
    texts: list[FinishedText]
    input_length: int
    timings: GenerateTimings
    state: LanguageState | None = None
    position: int = 0  # tokens that the state has seen


@dataclass
class GrowingText:
    """One continuation while it grows."""

    sample: int
    context: Any
    pending: int
    text: TextStream
    earlier: int = 0  # tokens drawn by the requests that this one continues
    events: list[TokenEvent] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    tail: str = ""

    @property
    def draws(self) -> int:
        """Tokens drawn so far: the counter of the next draw."""
        return self.earlier + len(self.events)

    def end(self, reason: FinishReason) -> str:
        """Grow no more; the text that was held back."""
        self.finish_reason = reason
        self.tail = self.text.held
        return self.text.flush()


class GenerateJob(Job):
    """A generate request; see `generate_job`."""

    def __init__(self, stage: PrefillStage, model: Language, options: GenerateOptions) -> None:
        deadline = None if options.deadline_ms is None else options.deadline_ms / 1000
        super().__init__(stage, deadline_seconds=deadline)
        self.model = model
        self.options = options
        self.reader: PromptReader | None = None
        self.prompt: list[int] = []
        self.prefilled = 0
        self.context: Any = None
        self.streams: list[GrowingText] = []
        self.decode_started: float | None = None
        self.last_token_at: float | None = None

    @property
    def rows(self) -> int:
        """Sequences in this job's next quantum."""
        return len(self.live) if self.streams else 1

    @property
    def keeps_place(self) -> bool:
        """Prompts are read one after another: in turns, all of them would be late."""
        return not self.streams

    @property
    def spent(self) -> int:
        """Tokens read and generated so far."""
        return (len(self.prompt) if self.streams else self.prefilled) + sum(len(s.events) for s in self.streams)

    @property
    def prompt_text(self) -> str:
        """The prompt as the request has it, as text."""
        prompt = self.options.prompt
        return prompt if isinstance(prompt, str) else self.model.vocabulary.decode(prompt)

    @property
    def live(self) -> list[GrowingText]:
        """Continuations that still grow."""
        return [stream for stream in self.streams if stream.finish_reason is None]

    def begin_decoding(self, stage: DecodeStage) -> None:
        """The prompt is read but for its last token: fork one stream per sample."""
        resumed = None if self.options.prompt else self.options.resumed
        left = (resumed.undecoded, resumed.tail) if resumed else (b"", "")
        earlier = self.options.resumed.generated if self.options.resumed else 0
        self.streams = [
            GrowingText(
                sample,
                self.context if sample == 0 else self.context.fork(),
                self.prompt[-1],
                TextStream(self.model.vocabulary, self.options.stops, *left),
                earlier,
            )
            for sample in range(self.options.samples)
        ]
        self.context = None
        self.decode_started = time.monotonic()
        self.stage = stage

    def release(self) -> None:
        """Give back the contexts."""
        for context in (self.context, *(stream.context for stream in self.streams)):
            if context is not None:
                context.release()

    def conclude(self, last: TokenEvent | None) -> Generation:
        """The finished request; continuations that still grew ran into the deadline, or the server goes down."""
        early: FinishReason = "cancelled" if self.interrupted else "deadline"
        prefix = self.prompt_text if self.options.return_full_text else ""
        texts = [
            FinishedText(
                prefix + "".join(event.token.text for event in stream.events),
                stream.finish_reason or early,
                stream.events,
            )
            for stream in self.streams
        ] or [FinishedText(prefix, early, [])] * self.options.samples
        # Where the deadline passed before the prompt was tokenised, the model saw nothing.
        input_length = max(0, len(self.prompt) - (self.options.resumed is not None))
        state, position = self._state()
        return Generation(last, texts, input_length, self._timings(), state, position)

    def _state(self) -> tuple[LanguageState | None, int]:
        """Where the first continuation was left, if that was asked for or the server broke the text off."""
        is_wanted = self.options.returns_state or (self.interrupted and self.options.samples == 1)
        if not (is_wanted and self.streams and self.options.decode == "recurrent"):
            return None, 0
        stream = self.streams[0]
        state = LanguageState(
            seed=self.options.seed,
            generated=stream.draws,
            pending=stream.pending,
            undecoded=stream.text.undecoded,
            tail=stream.tail,
            context=self.model.pack(stream.context),
        )
        return state, stream.context.position

    def _timings(self) -> GenerateTimings:
        now = time.monotonic()
        started = self.started or now
        decode_started = self.decode_started or now
        decode_seconds = now - decode_started
        tokens = sum(len(stream.events) for stream in self.streams)
        return GenerateTimings(
            queue_ms=round(1000 * (started - self.submitted), 3),
            prefill_ms=round(1000 * (decode_started - started), 3),
            decode_ms=round(1000 * decode_seconds, 3),
            tokens_per_second=round(tokens / decode_seconds, 3) if decode_seconds > 0 else 0.0,
        )


class PrefillStage:
    """Tokenises the prompt and reads it, a piece per quantum, one request at a time."""

    max_rows = 1

    def __init__(self, limits: PromptLimits, decode: DecodeStage) -> None:
        self._limits = limits
        self._decode = decode

    def run(self, jobs: Sequence[GenerateJob]) -> None:
        for job in jobs:
            self._read_piece(job)

    def _read_piece(self, job: GenerateJob) -> None:
        if not job.prompt:
            self._tokenize_piece(job)
        if job.interrupted:
            raise NotReady("The server is shutting down.")
        if time.monotonic() > job.deadline:
            self._decode.conclude(job, None)
            return
        if not job.prompt:
            return
        piece = job.prompt[job.prefilled : -1][:PREFILL_TOKENS]
        if piece:
            advance = job.model.prefill(job.context, piece)
            if not advance.is_finite():
                raise self._decode.broken()
            advance.commit()
            job.prefilled += len(piece)
        if job.prefilled == len(job.prompt) - 1:
            job.begin_decoding(self._decode)

    def _tokenize_piece(self, job: GenerateJob) -> None:
        """Tokenise a piece of the prompt; with the last one comes the context that is to take it."""
        prompt, resumed = job.options.prompt, job.options.resumed
        if isinstance(prompt, str):
            reader = job.reader = job.reader or PromptReader(
                job.model.vocabulary, prompt, self._limits.wanted(job.options)
            )
            if not reader.is_done:
                reader.read()
            if not reader.is_done:
                return
        job.prompt = self._complete(job, reader.tokens if isinstance(prompt, str) else prompt)
        job.context = job.model.unpack(resumed.context) if resumed else job.model.start(job.options.decode)

    def _complete(self, job: GenerateJob, read: Sequence[int]) -> list[int]:
        """The prompt with what goes before it, within its limits."""
        options, names = job.options, job.options.names
        tokens = list(read) if options.truncate is None else list(read[-options.truncate :])
        if options.resumed is not None:
            tokens = [options.resumed.pending, *tokens]
        if not tokens:
            if job.model.vocabulary.end_of_text is None:
                raise InvalidRequest(
                    f"{names.prompt} must not be empty for this model.", param=names.prompt, code="empty_prompt"
                )
            tokens = [job.model.vocabulary.end_of_text]
        if len(tokens) > self._limits.prompt_tokens:
            raise self._limits.too_long(names)
        if options.decode == "attention" and len(tokens) + options.max_new_tokens > self._limits.attention_tokens:
            raise InvalidRequest(
                f"{names.prompt} and {names.max_new_tokens} together must not exceed {self._limits.attention_tokens} "
                'tokens with decode "attention".',
                param=names.max_new_tokens,
                code="context_too_long",
            )
        return tokens


class DecodeStage:
    """One step for every live stream of a batch of requests to one model in one decoding mode."""

    def __init__(self, model: Language, decode: Decode, max_rows: int, metrics: Metrics) -> None:
        self.max_rows = max_rows
        self._model = model
        self._decode = decode
        self._max_rows = max_rows
        self._metrics = metrics

    def run(self, jobs: Sequence[GenerateJob]) -> None:
        rows = [(job, stream) for job in jobs for stream in job.live]
        parts = [self._step(rows[start : start + self._max_rows]) for start in range(0, len(rows), self._max_rows)]
        steps = [step for part in parts for step in part]
        first = 0
        for job in jobs:
            count = len(job.live)
            try:
                self._accept(job, steps[first : first + count])
            except Exception as error:
                job.fail(error)
            first += count

    def conclude(self, job: GenerateJob, last: TokenEvent | None) -> None:
        """Finish a request and count it."""
        generation = job.conclude(last)
        name, timings = self._model.name, generation.timings
        for text in generation.texts:
            self._metrics.request_success.labels(name, text.finish_reason).inc()
        self._metrics.prompt_tokens.labels(name).inc(generation.input_length)
        self._metrics.request_queue_time.labels(name).observe(timings.queue_ms / 1000)
        self._metrics.request_prefill_time.labels(name).observe(timings.prefill_ms / 1000)
        self._metrics.request_decode_time.labels(name).observe(timings.decode_ms / 1000)
        self._metrics.e2e_request_latency.labels(name).observe(time.monotonic() - job.submitted)
        job.finish(generation)

    def broken(self) -> EngineFailure:
        """The failure of a request whose numbers are none any more; its neighbours are untouched."""
        self._metrics.corrupted_requests.labels(self._model.name).inc()
        return EngineFailure("The model gave a value that is not finite for this request.", code="non_finite_output")

    def _step(self, rows: Sequence[tuple[GenerateJob, GrowingText]]) -> list[_Step]:
        noise = np.zeros((len(rows), *self._model.latent_shape), dtype=np.float32)
        for row, (job, stream) in enumerate(rows):
            scale = job.options.latent_noise
            if scale > 0:
                draw = generator(job.options.seed, stream.sample, stream.draws, "latent")
                noise[row] = scale * draw.standard_normal(self._model.latent_shape)
        output, advances = self._model.step(
            [stream.context for _, stream in rows], [stream.pending for _, stream in rows], noise
        )
        self._metrics.iteration_rows.labels(self._model.name).observe(len(rows))
        with np.errstate(all="ignore"):  # a broken row is found, by itself, when it is accepted
            confidence = self._model.confidence(self._decode)
            normaliser = log_normaliser(output.logits)
            calibrated = log_normaliser(output.logits / confidence.temperature)
            precision = np.exp(output.log_precision.astype(np.float64))
            finite = np.isfinite(output.logits).all(-1) & np.isfinite(normaliser + calibrated + precision)
            finite &= np.isfinite(output.latent).all((1, 2))
        return [
            _Step(
                advances[row],
                output.latent[row],
                output.logits[row],
                float(normaliser[row]),
                confidence,
                float(calibrated[row]),
                float(precision[row]),
                bool(finite[row]),
            )
            for row in range(len(rows))
        ]

    def _accept(self, job: GenerateJob, steps: Sequence[_Step]) -> None:
        """Choose a token for every live stream of a request, and commit its context."""
        if not all(step.is_finite() for step in steps):
            raise self.broken()
        early: FinishReason | None = None
        if job.interrupted:
            early = "cancelled"
        elif time.monotonic() > job.deadline:
            early = "deadline"
        events = []
        for stream, step in zip(job.live, steps, strict=True):
            token = _choose(job.options, stream, step.logits)
            events.append(self._append(job.options, stream, step, token, early))
        self._observe_latency(job, len(events))
        last = None if job.live else events.pop()
        if job.options.is_streamed:
            for event in events:
                job.emit(event)
        if last is not None:
            self.conclude(job, last)

    def _append(
        self, options: GenerateOptions, stream: GrowingText, step: _Step, token: int, early: FinishReason | None
    ) -> TokenEvent:
        vocabulary = self._model.vocabulary
        text = stream.text.push(token)
        reason = early
        if stream.text.stopped:
            reason = "stop_sequence"
        elif token == vocabulary.end_of_text:
            reason = "eos_token"
        elif len(stream.events) + 1 == options.max_new_tokens:
            reason = "length"
        if reason is not None:
            text += stream.end(reason)
        event = TokenEvent(
            index=len(stream.events) + 1,
            sample=stream.sample,
            token=Token(
                id=token,
                text=text,
                logprob=step.log_probability(token),
                special=vocabulary.is_special(token),
                confidence=step.confidence(token),
                precision=step.precision,
            ),
            top_tokens=self._top_tokens(step, options.top_n_tokens),
            # A copy: the step's is a part of the whole batch's.
            latent=step.latent.copy() if options.return_latents else None,
        )
        # What a stream has told already is not told again at its end.
        stream.events.append(replace(event, top_tokens=None, latent=None) if options.is_streamed else event)
        stream.pending = token
        step.advance.commit()
        return event

    def _top_tokens(self, step: _Step, count: int) -> TopTokens | None:
        if count == 0:
            return None
        tokens = most_probable(step.logits, count)
        return TopTokens(tokens, [step.log_probability(token) for token in tokens], self._model.vocabulary)

    def _observe_latency(self, job: GenerateJob, tokens: int) -> None:
        now, name = time.monotonic(), self._model.name
        if job.last_token_at is None:
            self._metrics.time_to_first_token.labels(name).observe(now - job.submitted)
        else:
            self._metrics.inter_token_latency.labels(name).observe(now - job.last_token_at)
        self._metrics.generation_tokens.labels(name).inc(tokens)
        job.last_token_at = now


@dataclass(frozen=True)
class _Step:
    """One row of a step's output, and what follows from its logits."""

    advance: Advance
    latent: NDArray[np.float32]
    logits: NDArray[np.float32]
    normaliser: float  # of the logits
    calibration: TokenConfidence
    calibrated: float  # normaliser at its temperature
    precision: float
    has_numbers: bool  # whether all of the above are

    def is_finite(self) -> bool:
        """Whether everything that would be sent or kept is a number."""
        return self.has_numbers and self.advance.is_finite()

    def log_probability(self, token: int) -> float:
        """Of a token, under the model as it is."""
        return float(self.logits[token]) - self.normaliser

    def confidence(self, token: int) -> float:
        """The calibrated probability that a token is the right next one."""
        return float(self.calibration(float(self.logits[token] / self.calibration.temperature) - self.calibrated))


def _choose(options: GenerateOptions, stream: GrowingText, logits: NDArray[np.float32]) -> int:
    if not options.is_sampled:
        return int(np.argmax(logits))
    weights = filtered_probabilities(logits, options.temperature, options.top_k, options.top_p)
    draw = generator(options.seed, stream.sample, stream.draws, "token")
    return draw_index(weights, draw.random())
