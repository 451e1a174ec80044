"""Options of a generation, and limits of prompts."""

from __future__ import annotations

from dataclasses import dataclass

from rfa.runtime.choices import Mode
from rfa.service.engine.text.state import LanguageState
from rfa.service.errors import InvalidRequest

LONG_PROMPT = 1_000  # characters; longer prompts have a stage of their own, so that shorter ones do not wait


@dataclass(frozen=True)
class FieldNames:
    """Names of the request's fields in errors; `whole` for the size of the reply."""

    prompt: str = "inputs"
    max_new_tokens: str = "parameters.max_new_tokens"
    truncate: str = "parameters.truncate"
    decode: str = "parameters.decode"
    whole: str = "parameters"


@dataclass(frozen=True)
class GenerateOptions:
    """Options of a generation.

    Args:
        prompt: text, or tokens of the model's vocabulary.
        mode: None is the model's default.
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
    mode: Mode | None = None
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
    """Largest number of tokens: of a prompt, and of a prompt with its continuation in attention mode."""

    prompt_tokens: int
    attention_tokens: int

    def max_prompt_tokens(self, options: GenerateOptions) -> int:
        """Tokens to read from the end of a prompt: `truncate`, or one more than the limit."""
        most = self.prompt_tokens + 1
        return most if options.truncate is None else min(options.truncate, most)

    def check_size(self, options: GenerateOptions, longest_token: int) -> None:
        """Refuse a prompt that must exceed the limit, before tokenising it.

        Args:
            longest_token: bytes of the model's longest token.

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
        """The error of a prompt that is too long."""
        message = (
            f"{names.prompt} must not have more than {self.prompt_tokens} tokens; {names.truncate} keeps the last ones."
        )
        return InvalidRequest(message, param=names.prompt, code="prompt_too_long")
