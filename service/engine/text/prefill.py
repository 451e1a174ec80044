"""Prompts: tokenised and read in pieces.

The last prompt token is not part of the prefill: it is the first token that a step takes. So every logit that is
sampled from comes from the same graph, with its latent noise, and a stream is always (context, pending token).
"""

from __future__ import annotations

from collections.abc import Sequence

from rfa.service.engine.text.decode import DecodeStage
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import PromptLimits
from rfa.service.engine.text.prompt import PromptReader
from rfa.service.errors import InvalidRequest, NotReady

PREFILL_TOKENS = 64  # per quantum: long enough to be efficient, short enough not to stall running streams


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
        if job.is_overdue:
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
        job.context = job.model.unpack(resumed.context) if resumed else job.model.start(job.mode)

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
        if job.mode == "attention" and len(tokens) + options.max_new_tokens > self._limits.attention_tokens:
            raise InvalidRequest(
                f"{names.prompt} and {names.max_new_tokens} together must not exceed {self._limits.attention_tokens} "
                'tokens with decode "attention".',
                param=names.max_new_tokens,
                code="context_too_long",
            )
        return tokens
