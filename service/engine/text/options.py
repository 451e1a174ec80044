"""Options of a generation, and limits on prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rfa.runtime.choices import Mode
from rfa.runtime.text.language import Language
from rfa.runtime.text.logit_adjustments import NO_RULES, SamplingRules
from rfa.service.engine.text.state import LanguageState
from rfa.service.errors import InvalidRequest

NUMBERS_PER_SCORE = 7
LONG_PROMPT = 1_000  # in characters; longer prompts have a stage of their own, so that shorter ones do not wait


@dataclass(frozen=True)
class FieldNames:
    """Names of request fields for error messages. `whole` is the field that determines the size of the reply, and
    `prefix` precedes the names of other fields.

    `truncate` is empty where a prompt cannot be shortened.
    """

    prompt: str = "inputs"
    max_new_tokens: str = "parameters.max_new_tokens"
    truncate: str = "parameters.truncate"
    decode: str = "parameters.decode"
    whole: str = "parameters"
    prefix: str = "parameters."

    def of_item(self, position: int) -> FieldNames:
        """Return the field names for one of several prompts."""
        return replace(self, prompt=f"{self.prompt}[{position}]")


@dataclass(frozen=True)
class GenerateOptions:
    """Options for generating a text.

    Args:
        prompt: a text, or tokens of the model's vocabulary.
        mode: decoding mode. None selects the model's default.
        passes: number of reweighting passes K in recurrent mode. None selects the model's default.
        stop_tokens: tokens that end the text.
        ignores_eos: whether the text continues after the end-of-text token.
        scored_top: number of most probable tokens to return for each token of the prompt. None does not score the
            prompt.
        emits_scores: whether the scores are sent as events instead of being part of the result.
        tenant: tenant (API key) that owns the prompt.
    """

    prompt: str | tuple[int, ...]
    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    is_sampled: bool = False
    rules: SamplingRules = NO_RULES
    stop_tokens: tuple[int, ...] = ()
    ignores_eos: bool = False
    stops: tuple[str, ...] = ()
    top_n_tokens: int = 0
    return_full_text: bool = False
    truncate: int | None = None
    mode: Mode | None = None
    passes: int | None = None
    latent_noise: float = 0.0
    samples: int = 1
    return_latents: bool = False
    deadline_ms: int | None = None
    is_streamed: bool = False
    resumed: LanguageState | None = None
    returns_state: bool = False
    scored_top: int | None = None
    emits_scores: bool = False
    tenant: str = ""
    names: FieldNames = FieldNames()

    @property
    def token_ids(self) -> dict[str, Sequence[int]]:
        """Token ids in the request, by field."""
        prompt = () if isinstance(self.prompt, str) else self.prompt
        return {
            self.names.prompt: prompt,
            f"{self.names.prefix}stop_token_ids": self.stop_tokens,
            f"{self.names.prefix}logit_bias": tuple(self.rules.logit_bias),
        }


def checked_passes(model: Language, options: GenerateOptions) -> int | None:
    """Return the number of reweighting passes for a request, or None in attention mode.

    Raises:
        InvalidInput: If the model does not support the requested number. The message names its range.
        InvalidRequest: If a number is requested for attention mode.
    """
    param = f"{options.names.prefix}passes"
    if (options.mode or model.default_mode) == "recurrent":
        return model.passes.checked(options.passes, model.name, param)
    if options.passes is not None:
        message = f'{param} requires decode "recurrent"; leave it out for decode "attention".'
        raise InvalidRequest(message, param=param, code="not_supported")
    return None


@dataclass(frozen=True)
class PromptLimits:
    """Maximum numbers of tokens in a prompt, of tokens in a prompt with its continuation in attention mode, and of
    numbers in a reply."""

    prompt_tokens: int
    attention_tokens: int
    reply_numbers: int = 1 << 62

    def max_prompt_tokens(self, options: GenerateOptions) -> int:
        """Return the number of tokens to read from the end of a prompt: `truncate`, or the limit plus one."""
        most = self.prompt_tokens + 1
        return most if options.truncate is None else min(options.truncate, most)

    def check_size(self, options: GenerateOptions, longest_token: int) -> None:
        """Reject a prompt that would exceed the limit, before it is tokenised.

        Args:
            longest_token: number of bytes of the model's longest token.

        Raises:
            InvalidRequest: If the prompt is too long (`prompt_too_long`).
        """
        prompt = options.prompt
        least = len(prompt) if not isinstance(prompt, str) else -(-len(prompt.encode()) // longest_token)
        if options.truncate is not None:
            least = min(least, options.truncate)
        if least > self.prompt_tokens:
            raise self.too_long(options.names)

    def check_scores(self, options: GenerateOptions, tokens: int) -> None:
        """Reject a prompt with this number of tokens before it is scored, if its scores would exceed the limit.

        Raises:
            InvalidRequest: If the reply would be too large (`reply_too_large`).
        """
        numbers = tokens * options.samples * (NUMBERS_PER_SCORE + 2 * (options.scored_top or 0))
        if options.scored_top is not None and numbers > self.reply_numbers:
            prompt = options.names.prompt
            message = (
                f"{prompt} requests about {numbers} numbers of scores, but this server sends at most "
                f"{self.reply_numbers}; send fewer texts."
            )
            raise InvalidRequest(message, param=prompt, code="reply_too_large")

    def too_long(self, names: FieldNames) -> InvalidRequest:
        """Return the error for a prompt that is too long."""
        remedy = f"; {names.truncate} keeps the last tokens" if names.truncate else ""
        message = f"{names.prompt} must not contain more than {self.prompt_tokens} tokens{remedy}."
        return InvalidRequest(message, param=names.prompt, code="prompt_too_long")
