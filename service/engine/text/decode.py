"""One token of every live stream per step: of all requests to a model in a mode together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rfa.export.token_confidence import TokenConfidence
from rfa.service.engine.text.drift import DriftMeter
from rfa.service.engine.text.generated import TokenEvent, TopTokens
from rfa.service.engine.text.job import GenerateJob, GrowingText
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.engine.text.sampling import (
    draw_index,
    filtered_probabilities,
    generator,
    log_normaliser,
    most_probable,
)
from rfa.service.errors import EngineFailure
from rfa.service.metrics import Metrics
from rfa.service.runtime.language import Advance, Language
from rfa.service.schemas.base import Mode
from rfa.service.schemas.replies import FinishReason, Token


class DecodeStage:
    """One step for every live stream of a batch of requests to one model in one decoding mode."""

    def __init__(self, model: Language, mode: Mode, max_rows: int, metrics: Metrics, drift: DriftMeter) -> None:
        self.max_rows = max_rows
        self._model = model
        self._mode = mode
        self._max_rows = max_rows
        self._metrics = metrics
        self._drift = drift

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
        self._drift.offer(job)

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
            confidence = self._model.confidence(self._mode)
            normaliser = log_normaliser(output.logits)
            calibrated = log_normaliser(output.logits / confidence.temperature)
            finite = np.isfinite(output.logits).all(-1) & np.isfinite(normaliser + calibrated + output.log_precision)
            finite &= np.isfinite(output.latent).all((1, 2))
        return [
            _Step(
                advances[row],
                output.latent[row],
                output.logits[row],
                float(normaliser[row]),
                confidence,
                float(calibrated[row]),
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
        elif job.is_overdue:
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
