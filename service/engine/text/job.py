"""Job of a request that generates text. It stores the prompt, its context and the continuations."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rfa.runtime.text.context_format import pack_output, unpack_output
from rfa.runtime.text.contexts import StepOutput
from rfa.runtime.text.incremental import TextStream
from rfa.runtime.text.language import Language
from rfa.runtime.text.logit_adjustments import AdjustedLogits
from rfa.runtime.text.scores import TokenScores
from rfa.service.engine.job import Job
from rfa.service.engine.reply_size import cache_bytes
from rfa.service.engine.text.generated import FinishedText, Generation, TokenEvent
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.engine.text.prompt import PromptReader
from rfa.service.engine.text.scored import ScoredPrompt
from rfa.service.engine.text.state import LanguageState
from rfa.service.memory import Lease
from rfa.service.schemas.text_replies import FinishReason, GenerateTimings

if TYPE_CHECKING:
    from rfa.service.engine.text.decode import DecodeStage
    from rfa.service.engine.text.prefill import PrefillStage


@dataclass
class TextSequence:
    """A continuation of the prompt that is in progress."""

    sample: int
    context: Any
    pending: int
    text: TextStream
    adjusted: AdjustedLogits | None = None
    earlier: int = 0  # number of tokens that previous requests sampled
    ready: StepOutput | None = None  # output of the model after the pending token, taken from a state
    unread: int | None = None  # the token before the pending one, if its output was `ready`
    events: list[TokenEvent] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    tail: str = ""

    @property
    def draws(self) -> int:
        """Number of tokens that have been sampled so far. The random number for the next token is derived from it."""
        return self.earlier + len(self.events)

    def defer(self) -> None:
        """Record that the next token was sampled from `ready`. The model reads the pending token later."""
        self.ready, self.unread = None, self.pending

    def read_deferred(self, model: Language) -> None:
        """Read the token that `defer` recorded, if any."""
        if self.unread is not None:
            model.peek(self.context, self.unread)[1].commit()
            self.unread = None

    def end(self, reason: FinishReason) -> str:
        """End the continuation. Return text that was not emitted yet because it could be the start of a stop
        sequence."""
        self.finish_reason = reason
        self.tail = self.text.held
        return self.text.flush()


class GenerateJob(Job):
    """Job of a request that generates text.

    Args:
        reader: Reader of the prompt, if reading has started.
        lease: Memory lease for the contexts in attention mode.
        capacity: Number of tokens of each context that are covered by the lease.
    """

    def __init__(
        self,
        stage: PrefillStage,
        model: Language,
        options: GenerateOptions,
        reader: PromptReader | None = None,
        lease: Lease | None = None,
        capacity: int = 0,
    ) -> None:
        deadline = None if options.deadline_ms is None else options.deadline_ms / 1000
        super().__init__(stage, deadline_seconds=deadline)
        self.model = model
        self.options = options
        self.mode = options.mode or model.default_mode
        self.reader = reader
        self._lease, self._capacity = lease, capacity
        self.prompt: list[int] = []
        self.prefilled = 0
        self.score_parts: list[TokenScores] = []
        self.prefix_keys: dict[int, bytes] = {}  # keys of the states of the prompt that may be stored
        self.context: Any = None
        self._forks: list[Any] = []  # copies of the context, until there is one for each continuation
        self.streams: list[TextSequence] = []
        self.decode_started: float | None = None
        self.last_token_at: float | None = None

    @property
    def rows(self) -> int:
        """Number of sequences in the next quantum of this job."""
        return len(self.live) if self.streams else 1

    @property
    def runs_next(self) -> bool:
        """Whether the job runs before other jobs of its stage. This is True for prompts, because alternating between
        prompts would delay all of them."""
        return not self.streams

    @property
    def token_count(self) -> int:
        """Number of tokens of the prompt and of all continuations that have been processed so far."""
        return (len(self.prompt) if self.streams else self.prefilled) + sum(len(s.events) for s in self.streams)

    @property
    def prompt_text(self) -> str:
        """Text of the prompt. It is decoded if the request contains tokens."""
        prompt = self.options.prompt
        return prompt if isinstance(prompt, str) else self.model.vocabulary.decode(prompt)

    @property
    def scored_prompt(self) -> ScoredPrompt:
        """Tokens of the prompt in this request, and the scores that have been computed so far."""
        resumed = self.options.resumed is not None
        scores = TokenScores.joined(self.score_parts) if self.score_parts else None
        return ScoredPrompt(self.prompt[resumed:], scores, self.model.vocabulary, not resumed, self._is_text)

    @property
    def _is_text(self) -> bool:
        """Whether the tokens represent the text of the prompt. An empty text is replaced by the end-of-text token."""
        return isinstance(self.options.prompt, str) and self.options.prompt != ""

    def scored_piece(self, scores: TokenScores | None, first: int) -> ScoredPrompt:
        """Return the tokens from position `first` on that belong to `scores`. At the start of a text, this includes the
        first token, which has no score."""
        own, has_first = self.prompt[self.options.resumed is not None :], first == 0 and self.options.resumed is None
        end = first + has_first + (0 if scores is None else len(scores.tokens))
        return ScoredPrompt(own[first:end], scores, self.model.vocabulary, has_first, self._is_text)

    @property
    def live(self) -> list[TextSequence]:
        """Continuations that are not complete."""
        return [stream for stream in self.streams if stream.finish_reason is None]

    def shrink_capacity(self, tokens: int) -> None:
        """Reduce the number of tokens for which each context in attention mode has a lease."""
        if self._lease is not None and self._capacity > tokens:
            self._lease.shrink(cache_bytes(self.model.cache_bytes, self._capacity - tokens, self.options.samples))
            self._capacity = tokens

    def begin_decoding(self, stage: DecodeStage) -> None:
        """Create one context per continuation. Call this when the prompt has been processed except for its last token.

        If this fails, `release` still releases the original context and its copies.
        """
        for _ in range(1, self.options.samples):
            self._forks.append(self.context.fork())
        resumed = None if self.options.prompt else self.options.resumed
        left = (resumed.undecoded, resumed.tail) if resumed else (b"", "")
        earlier = self.options.resumed.generated if self.options.resumed else 0
        ready = self._ready(resumed)
        self.streams = [
            TextSequence(
                sample,
                context,
                self.prompt[-1],
                TextStream(self.model.vocabulary, self.options.stops, *left),
                self._adjusted_logits(),
                earlier,
                ready,
            )
            for sample, context in enumerate((self.context, *self._forks))
        ]
        self.context, self._forks = None, []
        self.decode_started = time.monotonic()
        self.stage = stage
        if self.options.max_new_tokens == 0:
            for stream in self.streams:
                stream.end("length")
            stage.finish(self, None)

    def _ready(self, resumed: LanguageState | None) -> StepOutput | None:
        """Return the output in a state if the first token can be sampled from it. Otherwise, return None."""
        if resumed is None or not resumed.output or self.options.latent_noise > 0 or not self._stores_outputs:
            return None
        return unpack_output(resumed.output, len(self.model.vocabulary), self.model.latent_shape)

    def _adjusted_logits(self) -> AdjustedLogits | None:
        """Return the changes to the logits of a continuation, or None if the request contains no changes."""
        vocabulary, options = self.model.vocabulary, self.options
        end = vocabulary.end_of_text
        ends = (*options.stop_tokens, *([] if end is None or options.ignores_eos else [end]))
        rules = replace(options.rules, ends=ends)
        return None if rules.are_neutral else AdjustedLogits(rules, len(vocabulary), self.prompt)

    def add_scores(self, scores: TokenScores) -> None:
        """Send the next scores of the prompt as an event, or store them for the result."""
        if self.options.emits_scores:
            self.emit(scores)
        else:
            self.score_parts.append(scores)

    def release(self) -> None:
        """Release the contexts of the job."""
        for context in (self.context, *self._forks, *(stream.context for stream in self.streams)):
            if context is not None:
                context.release()

    def generation(self, last: TokenEvent | None) -> Generation:
        """Return the result of the request. Continuations that are not complete end with "deadline" or "cancelled"."""
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
        # This is 0 if the deadline passed before the prompt was tokenised.
        input_length = max(0, len(self.prompt) - (self.options.resumed is not None))
        state, position = self._state()
        return Generation(last, texts, input_length, self._timings(), state, position)

    def _state(self) -> tuple[LanguageState | None, int]:
        """Return the state of the first continuation and its number of tokens. The state is None, unless it was
        requested or the server interrupted the request."""
        needs_state = self.options.returns_state or (self.interrupted and self.options.samples == 1)
        if not (needs_state and self.streams and self.mode == "recurrent"):
            return None, 0
        stream = self.streams[0]
        stream.read_deferred(self.model)
        state = LanguageState(
            seed=self.options.seed,
            generated=stream.draws,
            pending=stream.pending,
            undecoded=stream.text.undecoded,
            tail=stream.tail,
            context=self.model.pack(stream.context),
            output=self._output(stream),
        )
        return state, stream.context.position

    def _output(self, stream: TextSequence) -> bytes:
        """Return the packed output of the model after the pending token, for the state. Return b"" if states do not
        contain outputs, or on a GPU, where outputs are not copied."""
        if self.model.runtime == "torch" or not self._stores_outputs:
            return b""
        output = stream.ready or self.model.peek(stream.context, stream.pending)[0]
        return pack_output(output)

    @property
    def _stores_outputs(self) -> bool:
        """Whether states contain outputs. A state does not contain the number of passes, so only outputs with the
        default number of passes are stored."""
        return self.options.passes in (None, self.model.passes.most)

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
