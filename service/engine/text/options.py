"""Options of a request that generates text, and limits on prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rfa.runtime.choices import Mode
from rfa.runtime.text.language import Language
from rfa.runtime.text.logit_adjustments import NO_RULES, SamplingRules
from rfa.service.engine.text.state import LanguageState
from rfa.service.errors import InvalidRequest

NUMBERS_PER_SCORE = 7
LONG_PROMPT = 1_000  # characters; longer prompts have a separate stage, so that shorter ones do not wait for them


@dataclass(frozen=True)
class FieldNames:
    """Names of request fields for error messages.

    Attributes:
        prompt: Name of the field with the prompt.
        max_new_tokens: Name of the field with the maximum number of generated tokens.
        truncate: Name of the field that shortens a prompt. It is empty if there is no such field.
        decode: Name of the field with the mode.
        whole: Name of the field that determines the size of the reply.
        prefix: Prefix of the names of other fields.
    """

    prompt: str = "inputs"
    max_new_tokens: str = "parameters.max_new_tokens"
    truncate: str = "parameters.truncate"
    decode: str = "parameters.decode"
    whole: str = "parameters"
    prefix: str = "parameters."

    def of_item(self, position: int) -> FieldNames:
        """Return the field names for the prompt at a position in a list of prompts."""
        return replace(self, prompt=f"{self.prompt}[{position}]")


@dataclass(frozen=True)
class GenerateOptions:
    """Options of a request that generates text.

    Args:
        prompt: Text, or tokens of the vocabulary of the model.
        rules: Changes to the logits, such as penalties.
        stop_tokens: Tokens that end the text.
        ignores_eos: Whether the text continues after the end-of-text token.
        stops: Stop sequences.
        mode: Decoding mode. If None, the default of the model is used.
        passes: Number of reweighting passes K in recurrent mode. If None, the default of the model is used.
        samples: Number of continuations.
        resumed: State to continue from.
        scored_top: Number of most probable tokens to return for each token of the prompt. If None, the prompt is not
            scored.
        emits_scores: Whether the scores are sent as events. Otherwise, they are part of the result.
        tenant: Tenant (API key) to which cached states of the prompt belong.
        names: Names of the request fields for error messages.
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
        """Mapping from names of fields to the token ids that they contain."""
        prompt = () if isinstance(self.prompt, str) else self.prompt
        return {
            self.names.prompt: prompt,
            f"{self.names.prefix}stop_token_ids": self.stop_tokens,
            f"{self.names.prefix}logit_bias": tuple(self.rules.logit_bias),
        }


def checked_passes(model: Language, options: GenerateOptions) -> int | None:
    """Check the number of reweighting passes of a request, and return it. Return None in attention mode.

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
    """Limits on prompts.

    Attributes:
        prompt_tokens: Maximum number of tokens in a prompt.
        attention_tokens: Maximum number of tokens in a prompt and its continuation in attention mode.
        reply_numbers: Maximum number of numeric values in a reply.
    """

    prompt_tokens: int
    attention_tokens: int
    reply_numbers: int = 1 << 62

    def max_prompt_tokens(self, options: GenerateOptions) -> int:
        """Return the number of tokens to read from the end of a prompt. It is the option `truncate`, but at most one
        more than the maximum number of prompt tokens."""
        most = self.prompt_tokens + 1
        return most if options.truncate is None else min(options.truncate, most)

    def check_size(self, options: GenerateOptions, longest_token: int) -> None:
        """Check a prompt before it is tokenised, using a lower bound on its number of tokens.

        Args:
            longest_token: Number of bytes of the longest token in the vocabulary.

        Raises:
            InvalidRequest: If the prompt has too many tokens (`prompt_too_long`).
        """
        prompt = options.prompt
        least = len(prompt) if not isinstance(prompt, str) else -(-len(prompt.encode()) // longest_token)
        if options.truncate is not None:
            least = min(least, options.truncate)
        if least > self.prompt_tokens:
            raise self.too_long(options.names)

    def check_scores(self, options: GenerateOptions, tokens: int) -> None:
        """Check the size of the scores of a prompt with `tokens` tokens, before it is scored.

        Raises:
            InvalidRequest: If the reply would be too large (`reply_too_large`).
        """
        numbers = tokens * options.samples * (NUMBERS_PER_SCORE + 2 * (options.scored_top or 0))
        if options.scored_top is not None and numbers > self.reply_numbers:
            prompt = options.names.prompt
            message = (
                f"{prompt}: the scores would contain about {numbers} numbers, but this server sends at most "
                f"{self.reply_numbers}; send a shorter text, or request fewer alternatives for each token."
            )
            raise InvalidRequest(message, param=prompt, code="reply_too_large")

    def too_long(self, names: FieldNames) -> InvalidRequest:
        """Return the error for a prompt that is too long."""
        remedy = f"; {names.truncate} keeps the last tokens" if names.truncate else ""
        message = f"{names.prompt} must not contain more than {self.prompt_tokens} tokens{remedy}."
        return InvalidRequest(message, param=names.prompt, code="prompt_too_long")
