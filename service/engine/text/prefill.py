"""Tokenises and reads prompts in pieces.

The last token of a prompt is the input of the first decode step, so that all sampled logits come from the same graph,
with its latent noise, and a continuation is always a context and a pending token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rfa.runtime.text.contexts import Context
from rfa.runtime.text.language import Language
from rfa.service.engine.text.decode import DecodeStage
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import PromptLimits
from rfa.service.engine.text.prompt import PromptReader
from rfa.service.errors import InvalidRequest, NotReady


class PrefillStage:
    """Tokenises and reads prompts, a piece of each per quantum, in batches."""

    def __init__(self, model: Language, limits: PromptLimits, decode: DecodeStage) -> None:
        self.max_rows = model.prefill_rows
        self._model = model
        self._limits = limits
        self._decode = decode

    def run(self, jobs: Sequence[GenerateJob]) -> None:
        pieces: dict[GenerateJob, Sequence[int]] = {}
        # After a failed batch the jobs come again one by one; some may have advanced already.
        for job in (job for job in jobs if not job.done and not job.streams):
            with _own_failure(job):
                piece = self._next_piece(job)
                if piece is not None and sum(map(len, pieces.values())) + len(piece) <= self._model.prefill_tokens:
                    pieces[job] = piece
        read = {job: piece for job, piece in pieces.items() if piece}
        if read:
            self._read(list(read), list(read.values()))
        for job in pieces:
            if not job.done and job.prefilled == len(job.prompt) - 1:
                with _own_failure(job):
                    job.begin_decoding(self._decode)

    def _next_piece(self, job: GenerateJob) -> Sequence[int] | None:
        """The next piece of the prompt, empty at its end; None while it is not tokenised."""
        if not job.prompt:
            self._tokenize_piece(job)
        if job.interrupted:
            raise NotReady("The server is shutting down.")
        if job.is_overdue:
            self._decode.finish(job, None)
            return None
        return job.prompt[job.prefilled : -1][: self._model.prefill_tokens] if job.prompt else None

    def _read(self, jobs: Sequence[GenerateJob], pieces: Sequence[Sequence[int]]) -> None:
        advances = self._model.prefill([job.context for job in jobs], pieces)
        for job, piece, advance in zip(jobs, pieces, advances, strict=True):
            with _own_failure(job):
                if not advance.is_finite():
                    raise self._decode.non_finite_error()
                advance.commit()
                job.prefilled += len(piece)

    def _tokenize_piece(self, job: GenerateJob) -> None:
        """Tokenise a piece of the prompt; the last one creates the context."""
        prompt, resumed = job.options.prompt, job.options.resumed
        if isinstance(prompt, str):
            reader = job.reader = job.reader or PromptReader(
                job.model.vocabulary, prompt, self._limits.max_prompt_tokens(job.options)
            )
            if not reader.is_done:
                reader.read()
            if not reader.is_done:
                return
        job.prompt = self._complete(job, reader.tokens if isinstance(prompt, str) else prompt)
        job.context = job.model.unpack(resumed.context) if resumed else self._start(job)

    def _start(self, job: GenerateJob) -> Context:
        new, samples, names = job.options.max_new_tokens, job.options.samples, job.options.names
        # The last token of the prompt belongs to each continuation.
        capacity, common = len(job.prompt) + new, len(job.prompt) - 1
        all_tokens = capacity + (samples - 1) * new
        if job.mode == "attention" and not job.model.fits(capacity, samples, common):
            raise InvalidRequest(
                f"{names.prompt} and {names.max_new_tokens} of all continuations together, {all_tokens} tokens, "
                'ask for more than all the memory that this server has for decode "attention".',
                param=names.max_new_tokens,
                code="context_too_long",
            )
        job.shrink_capacity(capacity)
        return job.model.start(job.mode, capacity=capacity, forks=samples - 1, common=common)

    def _complete(self, job: GenerateJob, read: Sequence[int]) -> list[int]:
        """The whole prompt, with the pending token of a state; checks its limits."""
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
        if job.mode == "attention" and len(tokens) + options.max_new_tokens > self._limits.attention_tokens:
            raise InvalidRequest(
                f"{names.prompt} and {names.max_new_tokens} together must not exceed {self._limits.attention_tokens} "
                'tokens with decode "attention".',
                param=names.max_new_tokens,
                code="context_too_long",
            )
        return tokens


@contextmanager
def _own_failure(job: GenerateJob) -> Iterator[None]:
    """An exception ends only this job."""
    try:
        yield
    except Exception as error:
        job.fail(error)
