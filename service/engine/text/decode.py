"""Decode texts in steps. A step computes one token of each sequence, for all requests to a model in one mode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from rfa.runtime.choices import Mode
from rfa.runtime.text.contexts import Advance, StepOutput
from rfa.runtime.text.language import Language
from rfa.runtime.text.sampling import Choice, DrawnToken, Draws, drawn_tokens, generator
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.engine.text.generated import TokenEvent, TopTokens
from rfa.service.engine.text.job import GenerateJob, TextSequence
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.errors import EngineFailure
from rfa.service.metrics import Metrics
from rfa.service.schemas.text_replies import FinishReason, Token


@dataclass(eq=False)
class DecodeStage:
    """Stage that advances the unfinished continuations of a batch of requests by one token.

    Attributes:
        model: Language model.
        mode: Decoding mode.
        max_rows: Maximum number of sequences in a step.
        metrics: Metrics of the server.
        drift: Object that compares the modes for some of the completed texts.
    """

    model: Language
    mode: Mode
    max_rows: int
    metrics: Metrics
    drift: DriftMeter

    def run(self, jobs: Sequence[GenerateJob]) -> None:
        rows = [(job, stream) for job in jobs for stream in job.live]
        parts = [self._steps(rows[start : start + self.max_rows]) for start in range(0, len(rows), self.max_rows)]
        steps = [step for part in parts for step in part]
        first = 0
        for job in jobs:
            count = len(job.live)
            try:
                self._accept(job, steps[first : first + count])
            except Exception as error:
                job.fail(error)
            first += count

    def finish(self, job: GenerateJob, last: TokenEvent | None) -> None:
        """Complete a request, and count it in the metrics. `last` is the last token of the request, which was not
        emitted as an event."""
        generation = job.generation(last)
        name, timings = self.model.name, generation.timings
        for text in generation.texts:
            self.metrics.request_success.labels(name, text.finish_reason).inc()
        self.metrics.prompt_tokens.labels(name).inc(generation.input_length)
        self.metrics.request_queue_time.labels(name).observe(timings.queue_ms / 1000)
        self.metrics.request_prefill_time.labels(name).observe(timings.prefill_ms / 1000)
        self.metrics.request_decode_time.labels(name).observe(timings.decode_ms / 1000)
        self.metrics.e2e_request_latency.labels(name).observe(time.monotonic() - job.submitted)
        job.finish(generation)
        self.drift.offer(job)

    def count_prefix(self, tokens: int, restored: int) -> None:
        """Count the tokens of a prompt, and the tokens whose state was found in the prefix cache."""
        self.metrics.prefix_cache_queries.labels(self.model.name).inc(tokens)
        self.metrics.prefix_cache_hits.labels(self.model.name).inc(restored)

    def non_finite_error(self) -> EngineFailure:
        """Increase the counter of requests whose outputs are not finite, and return the error for such a request."""
        self.metrics.corrupted_requests.labels(self.model.name).inc()
        return EngineFailure(
            "The model computed a value that is not finite for this request.", code="non_finite_output"
        )

    def _steps(self, rows: Sequence[_Row]) -> list[_Step]:
        """Return a decoding step for each row. It is computed by the model, or taken from the output in a state."""
        read = [row for row in rows if row[1].ready is None]
        for _, stream in read:
            stream.read_deferred(self.model)
        steps = iter(self._step(read) if read else [])
        return [next(steps) if stream.ready is None else self._draw(job, stream) for job, stream in rows]

    def _draw(self, job: GenerateJob, stream: TextSequence) -> _Step:
        draws = Draws([_choice(job.options, stream)], self.model.confidence(self.mode).temperature)
        (drawn,) = drawn_tokens(*cast(StepOutput, stream.ready), draws)
        return _Step(_Deferred(stream), drawn)

    def _step(self, rows: Sequence[_Row]) -> list[_Step]:
        noise = np.zeros((len(rows), *self.model.latent_shape), dtype=np.float32)
        for row, (job, stream) in enumerate(rows):
            scale = job.options.latent_noise
            if scale > 0:
                draw = generator(job.options.seed, stream.sample, stream.draws, "latent")
                noise[row] = scale * draw.standard_normal(self.model.latent_shape)
        choices = [_choice(job.options, stream) for job, stream in rows]
        drawn, advances = self.model.draw(
            [stream.context for _, stream in rows],
            [stream.pending for _, stream in rows],
            noise,
            Draws(choices, self.model.confidence(self.mode).temperature),
        )
        self.metrics.iteration_rows.labels(self.model.name).observe(len(rows))
        return [_Step(*row) for row in zip(advances, drawn, strict=True)]

    def _accept(self, job: GenerateJob, steps: Sequence[_Step]) -> None:
        """Append a token to every continuation of a request, and commit its context."""
        if not all(step.is_finite() for step in steps):
            raise self.non_finite_error()
        early: FinishReason | None = None
        if job.interrupted:
            early = "cancelled"
        elif job.is_overdue:
            early = "deadline"
        events = [self._append(job.options, stream, step, early) for stream, step in zip(job.live, steps, strict=True)]
        self._observe_latency(job, len(events))
        last = None if job.live else events.pop()
        if job.options.is_streamed:
            for event in events:
                job.emit(event)
        if last is not None:
            self.finish(job, last)

    def _append(
        self, options: GenerateOptions, stream: TextSequence, step: _Step, early: FinishReason | None
    ) -> TokenEvent:
        vocabulary, drawn = self.model.vocabulary, step.drawn
        token, top = drawn.token, drawn.top
        text = stream.text.push(token)
        reason = early
        if stream.text.stopped or token in options.stop_tokens:
            reason = "stop_sequence"
        elif token == vocabulary.end_of_text and not options.ignores_eos:
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
                logprob=drawn.log_probability,
                special=vocabulary.is_special(token),
                confidence=float(self.model.confidence(self.mode)(drawn.calibrated)),
            ),
            top_tokens=None if top is None else TopTokens(top.tokens, top.log_probabilities, vocabulary),
            # A copy, because the original is a view of the batch.
            latent=None if drawn.latent is None else drawn.latent.copy(),
        )
        # A streamed reply does not repeat the details at its end.
        stream.events.append(replace(event, top_tokens=None, latent=None) if options.is_streamed else event)
        step.advance.commit()
        stream.pending = token
        if stream.adjusted is not None:
            stream.adjusted.add(token)
        return event

    def _observe_latency(self, job: GenerateJob, tokens: int) -> None:
        now, name = time.monotonic(), self.model.name
        if job.last_token_at is None:
            self.metrics.time_to_first_token.labels(name).observe(now - job.submitted)
        else:
            self.metrics.inter_token_latency.labels(name).observe(now - job.last_token_at)
        self.metrics.generation_tokens.labels(name).inc(tokens)
        job.last_token_at = now


_Row = tuple[GenerateJob, TextSequence]


@dataclass(frozen=True)
class _Deferred:
    """Context update of a continuation whose next token was sampled from a stored output. The model reads the pending
    token in a later step."""

    stream: TextSequence

    def is_finite(self) -> bool:
        return True

    def commit(self) -> None:
        self.stream.defer()


class _Step(NamedTuple):
    """Result of a decoding step for one continuation: the context update and the token."""

    advance: Advance
    drawn: DrawnToken

    def is_finite(self) -> bool:
        """Return whether all outputs and the context are finite."""
        return self.drawn.is_finite and self.advance.is_finite()


def _choice(options: GenerateOptions, stream: TextSequence) -> Choice:
    """Return the options for sampling the next token of a continuation, and the random number for it."""
    temperature, uniform = None, 0.0
    if options.is_sampled:
        temperature = options.temperature
        uniform = generator(options.seed, stream.sample, stream.draws, "token").random()
    return Choice(
        temperature,
        options.top_k,
        options.top_p,
        options.min_p,
        options.typical_p,
        options.return_latents,
        uniform,
        options.top_n_tokens,
        stream.adjusted,
    )
