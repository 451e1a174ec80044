"""Compare the two decoding modes on texts that the server generates.

With the same weights, memory slots of constant size approximate attention over all tokens. One of every n texts is
decoded again in both modes without noise. The following is added to counters for each generated token: whether the most
probable tokens of both modes agree, and

    KL(p ‖ q) = Σ p log(p / q)        p: probabilities in the mode that generated the text, q: in the other mode

A separate thread processes one text at a time. It uses at most the fraction `DUTY` of a core.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.choices import Mode
from rfa.runtime.text.contexts import Context
from rfa.runtime.text.language import Language
from rfa.runtime.text.scores import row_scores
from rfa.service.engine.text.job import GenerateJob
from rfa.service.metrics import Metrics

logger = logging.getLogger("rfa.engine")

# Maximum number of tokens of a prompt, and of a generated text, that are compared.
MAX_PROMPT: Final = 448
MAX_TOKENS: Final = 64
PIECE: Final = 64
# Maximum fraction of the time of one core that comparisons use.
DUTY: Final = 0.1
CLOSE_SECONDS: Final = 10


@dataclass(frozen=True)
class DriftSample:
    """A generated text for which the modes are compared.

    Attributes:
        model: Model that generated the text.
        mode: Mode that generated the text.
        other: Mode with which `mode` is compared.
        prompt: Tokens of the prompt, except the last one.
        tokens: Input token of each decoding step. The first one is the last token of the prompt.
        passes: Number of reweighting passes in recurrent mode.
    """

    model: Language
    mode: Mode
    other: Mode
    prompt: Sequence[int]
    tokens: Sequence[int]
    passes: int | None = None


@dataclass
class DriftTally:
    """Sums over the compared tokens.

    Attributes:
        tokens: Number of compared tokens.
        nats: Sum of the KL divergences in nats.
        agreed: Number of tokens for which both modes have the same most probable token.
    """

    tokens: int = 0
    nats: float = 0.0
    agreed: int = 0


class DriftMeter:
    """Compares the modes for one of every n texts, where n is `every`. If `every` is 0, no texts are compared."""

    def __init__(self, every: int, metrics: Metrics) -> None:
        self._every = every
        self._metrics = metrics
        self._lock = threading.Lock()
        self._texts = 0
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def offer(self, job: GenerateJob) -> None:
        """Count a completed text, and start its comparison if it is due. Call this on a worker thread."""
        if not self._every:
            return
        with self._lock:
            self._texts += 1
            if self._texts < self._every or self._closing.is_set() or (self._thread and self._thread.is_alive()):
                return
            sample = drift_sample(job)
            if sample is None:
                return  # the next suitable text is used instead
            self._texts = 0
            thread = threading.Thread(target=self._work, args=(sample,), name="rfa-drift", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread is available; the request itself succeeds
                logger.warning("could not compare the decoding modes for a text: %s", error)
            else:
                self._thread = thread

    def close(self) -> None:
        """Stop the comparison that is in progress."""
        self._closing.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def _work(self, sample: DriftSample) -> None:
        tally = DriftTally()
        steps = drift_steps(sample, tally)
        try:
            while not self._closing.is_set():
                begun = time.thread_time()
                if next(steps, None) is None:
                    break
                self._closing.wait((time.thread_time() - begun) * (1 / DUTY - 1))
            else:
                return
        except Exception:
            logger.warning("could not compare the decoding modes for a text", exc_info=True)
            return
        finally:
            steps.close()
        labels = sample.model.name, sample.mode
        self._metrics.drift_tokens.labels(*labels).inc(tally.tokens)
        self._metrics.drift_nats.labels(*labels).inc(tally.nats)
        self._metrics.drift_agreed.labels(*labels).inc(tally.agreed)


def drift_sample(job: GenerateJob) -> DriftSample | None:
    """Return the data for comparing the modes on the first continuation of a request.

    Return None if the text cannot be compared: the model has only one mode or runs on a GPU, nothing was generated, the
    prompt is too long, or the request continued a state.
    """
    others = [mode for mode in job.model.modes if mode != job.mode]
    if not others or not job.streams or job.options.resumed is not None or job.model.runtime == "torch":
        return None
    generated = [event.token.id for event in job.streams[0].events]
    if not generated or not 1 <= len(job.prompt) <= MAX_PROMPT:
        return None
    read = [job.prompt[-1], *generated[:-1]][:MAX_TOKENS]
    return DriftSample(job.model, job.mode, others[0], tuple(job.prompt[:-1]), tuple(read), job.options.passes)


def drift_steps(sample: DriftSample, tally: DriftTally) -> Generator[bool]:
    """Decode a text in both modes, and add the results to `tally`. The generator yields after each chunk of the prompt
    and each token. Closing it releases the contexts.

    Raises:
        ValueError: If a probability is not finite.
    """
    model = sample.model
    contexts: list[Context] = []
    try:
        for mode in (sample.mode, sample.other):
            contexts.append(model.start(mode, passes=sample.passes))  # noqa: PERF401 - each is released, even if the next one fails
        for first in range(0, len(sample.prompt), PIECE):
            for context in contexts:
                (advance,) = model.prefill([context], [sample.prompt[first : first + PIECE]])
                advance.commit()
                yield True
        for token in sample.tokens:
            mine, other = (_log_probabilities(model, context, token) for context in contexts)
            nats = float((np.exp(mine) * (mine - other)).sum())
            if not np.isfinite(nats):
                raise ValueError("the model computed a probability that is not finite")
            tally.tokens += 1
            tally.nats += max(nats, 0.0)  # rounding may make it negative
            tally.agreed += int(mine.argmax() == other.argmax())
            yield True
    finally:
        for context in contexts:
            context.release()


def _log_probabilities(model: Language, context: Context, token: int) -> NDArray[np.float64]:
    """Return the log probabilities of the next token without noise, and advance the context."""
    output, advance = model.peek(context, token)
    advance.commit()
    normaliser = row_scores(output.logits, np.zeros(1, np.int64), np.float32(1))[0, 0]
    return output.logits[0].astype(np.float64) - float(normaliser)
