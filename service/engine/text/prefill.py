"""Tokenise and process prompts in chunks.

The last token of a prompt is not processed here; it is the input of the first decoding step. Therefore, all logits that
are sampled from come from the decoding step with its latent noise, and a continuation always consists of a context and
a pending token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rfa.runtime.text.contexts import Context
from rfa.runtime.text.language import Language
from rfa.runtime.text.scores import score_tokens
from rfa.service.engine.text.decode import DecodeStage
from rfa.service.engine.text.job import GenerateJob
from rfa.service.engine.text.options import PromptLimits
from rfa.service.engine.text.prefix_cache import PrefixCache
from rfa.service.engine.text.prompt import PromptReader
from rfa.service.errors import InvalidRequest, NotReady

# Number of tokens per quantum if a prompt is scored token by token.
STEPPED_TOKENS = 8


class PrefillStage:
    """Stage that tokenises and processes prompts in batches. A quantum processes one chunk of each prompt."""

    def __init__(self, model: Language, limits: PromptLimits, decode: DecodeStage, cache: PrefixCache) -> None:
        self.max_rows = model.prefill_rows
        self._model = model
        self._limits = limits
        self._decode = decode
        self._cache = cache

    def run(self, jobs: Sequence[GenerateJob]) -> None:
        pieces: dict[GenerateJob, Sequence[int]] = {}
        # After a failed batch the jobs are retried one by one, and some may already have advanced.
        for job in (job for job in jobs if not job.done and not job.streams):
            with _own_failure(job):
                piece = self._next_piece(job)
                if piece is not None and sum(map(len, pieces.values())) + len(piece) <= self._model.prefill_tokens:
                    pieces[job] = piece
        read = {job: piece for job, piece in pieces.items() if piece and job.options.scored_top is None}
        if read:
            self._read(list(read), list(read.values()))
        for job in pieces.keys() - read.keys():
            with _own_failure(job):
                self._score(job, pieces[job])
        for job in pieces:
            if not job.done and job.prefilled == len(job.prompt) - 1:
                with _own_failure(job):
                    job.begin_decoding(self._decode)

    def _next_piece(self, job: GenerateJob) -> Sequence[int] | None:
        """Return the next chunk of the prompt. Return an empty sequence at its end, and None if the prompt is not
        completely tokenised or the job has ended."""
        if not job.prompt:
            self._tokenize_piece(job)
        if job.interrupted:
            raise NotReady("The server is shutting down; try again later.")
        if job.is_overdue:
            self._decode.finish(job, None)
            return None
        return job.prompt[job.prefilled : -1][: self._piece_size(job)] if job.prompt else None

    def _piece_size(self, job: GenerateJob) -> int:
        is_slow = job.mode == "attention" or not self._model.scores_in_one_pass
        return STEPPED_TOKENS if job.options.scored_top is not None and is_slow else self._model.prefill_tokens

    def _score(self, job: GenerateJob, piece: Sequence[int]) -> None:
        """Process a chunk, and score the tokens that follow each of its tokens."""
        if not piece:
            return
        logits, is_finite = self._model.logits_of(job.context, piece)
        following = job.prompt[job.prefilled + 1 :][: len(piece)]
        temperature = self._model.confidence(job.mode).temperature
        scores = score_tokens(logits, following, temperature, job.options.scored_top or 0)
        if not (is_finite and scores.is_finite()):
            raise self._decode.non_finite_error()
        job.add_scores(scores)
        job.prefilled += len(piece)

    def _read(self, jobs: Sequence[GenerateJob], pieces: Sequence[Sequence[int]]) -> None:
        advances = self._model.prefill([job.context for job in jobs], pieces)
        for job, piece, advance in zip(jobs, pieces, advances, strict=True):
            with _own_failure(job):
                if not advance.is_finite():
                    raise self._decode.non_finite_error()
                advance.commit()
                job.prefilled += len(piece)
                self._cache.store(job.prefix_keys, job.prefilled, job.context)

    def _tokenize_piece(self, job: GenerateJob) -> None:
        """Tokenise a chunk of the prompt. The context is created after the last chunk."""
        tokens = self._read_tokens(job)
        if tokens is None:
            return
        job.prompt, resumed = self._complete(job, tokens), job.options.resumed
        if resumed:
            job.context = job.model.unpack(resumed.context, job.options.passes)
        else:
            job.context = self._restore(job) or self._start(job)

    def _read_tokens(self, job: GenerateJob) -> Sequence[int] | None:
        """Return the tokens of the prompt. If the prompt is a text, tokenise one more chunk of it; return None while
        there is more text to tokenise."""
        options, prompt = job.options, job.options.prompt
        if not isinstance(prompt, str):
            return prompt
        most = self._limits.max_prompt_tokens(options)
        if job.reader is None:
            stored = self._cache.tokens_of(options, prompt, most)
            if stored is not None:
                return stored
            job.reader = PromptReader(job.model.vocabulary, prompt, most)
        if not job.reader.is_done:
            job.reader.read(options.names.prompt)
        if not job.reader.is_done:
            return None
        self._cache.store_tokens(options, prompt, most, job.reader.tokens)
        return job.reader.tokens

    def _restore(self, job: GenerateJob) -> Context | None:
        """Return the context after the longest start of the prompt that is in the cache, or None if there is none."""
        if job.mode != "recurrent" or job.options.scored_top is not None:
            return None
        job.prefix_keys = self._cache.keys(job.options, job.prompt)
        found = self._cache.find(job.prefix_keys)
        self._decode.count_prefix(len(job.prompt) - 1, 0 if found is None else found.tokens)
        if found is None:
            return None
        job.prefilled = found.tokens
        return self._model.unpack(found.context, job.options.passes)

    def _start(self, job: GenerateJob) -> Context:
        new, samples, names = job.options.max_new_tokens, job.options.samples, job.options.names
        # The last token of the prompt is part of each continuation.
        capacity, common = len(job.prompt) + new, len(job.prompt) - 1
        all_tokens = capacity + (samples - 1) * new
        if job.mode == "attention" and not job.model.fits(capacity, samples, common):
            raise InvalidRequest(
                f"{names.prompt} and {names.max_new_tokens} need {all_tokens} tokens for all continuations, which "
                'exceeds the memory of this server for decode "attention"; request fewer tokens.',
                param=names.max_new_tokens,
                code="context_too_long",
            )
        job.shrink_capacity(capacity)
        return job.model.start(job.mode, capacity=capacity, forks=samples - 1, common=common, passes=job.options.passes)

    def _complete(self, job: GenerateJob, read: Sequence[int]) -> list[int]:
        """Check the limits on a prompt, and return all of its tokens, including the pending token of a state."""
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
        self._limits.check_scores(options, len(tokens))
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
    """Context manager that ends only this job if an exception is raised."""
    try:
        yield
    except Exception as error:
        job.fail(error)
