"""Requests to /generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from rfa.runtime.choices import Mode
from rfa.runtime.state.names import SESSION_PREFIX
from rfa.service.neutral import NullIs, Only
from rfa.service.schemas.base import FieldError, Request
from rfa.service.schemas.fields import (
    SEED,
    InitialState,
    Milliseconds,
    ReturnState,
    Seed,
    TextModel,
    TokenCount,
)
from rfa.service.schemas.sampling import NEUTRAL, TOP_P, SamplingFields, Share

MAX_SAMPLES = 16
DECODE = (
    "Mode of the model. `recurrent` uses memory slots of constant size; `attention` uses exact attention over a cache "
    "that grows with the text. The default is `recurrent` if the model supports it (see `modes` in /info and "
    "/v1/models)."
)

TextPasses = Annotated[
    int | None,
    Field(
        ge=1,
        le=64,
        description=(
            "Number K of reweighting passes per token, only in recurrent mode. Each pass updates the robust weights of "
            "the memory slots. The default is the largest number that the model supports (see `passes` in /info and "
            "/v1/models). A state can be continued with a different number."
        ),
    ),
]
StopSequence = Annotated[str, Field(min_length=1, max_length=256)]
LatentNoise = Annotated[
    float,
    Field(
        ge=0,
        le=10,
        description=(
            "Scale of the noise with which the latent of the last layer is sampled for each token. With 0, the mean is "
            "used, for which the confidence is calibrated."
        ),
    ),
]
ReturnLatents = Annotated[
    bool,
    NullIs(False),
    Field(
        description=(
            "Whether to return the latent of the last layer for each generated token. It is the mean, or a sample if "
            "`latent_noise` is greater than 0."
        )
    ),
]


class GenerateParameters(SamplingFields):
    """Options for generating text. Options that also exist in Text Generation Inference (TGI) have the same names and
    meanings."""

    max_new_tokens: Annotated[int, NullIs(100)] = Field(
        default=100, ge=1, le=1_000_000, description="Maximum number of generated tokens."
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Sampling temperature; 0 always selects the most probable token, and null means 1.",
    )
    top_k: TokenCount | None = Field(default=None, description="Sample only from the k most probable tokens.")
    top_p: Share | None = Field(default=None, description=TOP_P)
    do_sample: bool | None = Field(
        default=None,
        description=(
            "Whether to sample; false always selects the most probable token. With null, tokens are sampled if "
            "`temperature`, `top_k`, `top_p`, `min_p` or `typical_p` is set."
        ),
    )
    seed: Seed | None = Field(default=None, description=SEED)
    stop: list[StopSequence] = Field(
        default_factory=list, max_length=16, fail_fast=True, description="Strings that end the text."
    )
    details: bool = Field(default=True, description="Whether to return the tokens, their confidence and the timings.")
    top_n_tokens: Annotated[int, NullIs(0)] = Field(
        default=0, ge=0, le=32, description="Number of most probable tokens to return at each position."
    )
    return_full_text: Annotated[bool, NullIs(False)] = Field(
        default=False, description="Whether to prepend the prompt to generated_text."
    )
    truncate: TokenCount | None = Field(
        default=None, description="Number of tokens to keep at the end of the prompt; earlier tokens are dropped."
    )
    # Fields that clients of TGI send. Only values without an effect are accepted.
    return_tokens_as_token_ids: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)
    best_of: Annotated[Any, Only(None, 1)] = Field(default=None, description=NEUTRAL)
    decoder_input_details: Annotated[bool, NullIs(False)] = Field(
        default=False,
        description=(
            "Whether to return the tokens of the prompt in `details.prefill`. Cannot be combined with `stream`."
        ),
    )
    watermark: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)
    grammar: Annotated[Any, Only(None)] = Field(default=None, description=NEUTRAL)
    adapter_id: Annotated[Any, Only(None)] = Field(default=None, description=NEUTRAL)
    decode: Mode | None = Field(default=None, description=DECODE)
    passes: TextPasses = None
    latent_noise: LatentNoise = 0.0
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES, description="Number of independent continuations to generate.")
    return_latents: ReturnLatents = False
    deadline_ms: Milliseconds | None = Field(
        default=None,
        description=(
            'Time limit in milliseconds. Texts that are not complete by then end with the finish_reason "deadline".'
        ),
    )


class GenerateRequest(Request):
    """A prompt to continue."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "inputs": "It was the",
                    "parameters": {"max_new_tokens": 24, "temperature": 0.8, "top_p": 0.95, "seed": 7},
                }
            ]
        }
    )

    inputs: str = Field(
        max_length=2_000_000,
        description="Prompt to continue. The maximum number of tokens is `max_prompt_tokens` in the reply of /info; "
        "longer prompts require `parameters.truncate`.",
    )
    model: TextModel = None
    parameters: GenerateParameters = Field(default_factory=GenerateParameters, description="Options of the generation.")
    stream: bool = Field(default=False, description="Whether to send each token as a server-sent event.")
    state: InitialState = None
    return_state: ReturnState = False

    @model_validator(mode="before")
    @classmethod
    def check_places(cls, document: Any) -> Any:
        """Check that all fields are in the right place, because other servers have some fields in other places. The
        error says where a misplaced field belongs."""
        outer = document if type(document) is dict else {}
        inner = outer.get("parameters")
        parameters, own = GenerateParameters.model_fields.keys(), cls.model_fields.keys()
        for name in outer:
            if name in parameters - own:
                raise FieldError(name, f"{name} belongs inside parameters", "extra_forbidden")
        for name in inner if type(inner) is dict else ():
            if name in own - parameters:
                path = f"parameters.{name}"
                raise FieldError(path, f"{path}: {name} belongs at the top level", "extra_forbidden")
        return document

    @model_validator(mode="after")
    def check_combinations(self) -> GenerateRequest:
        """Check that the combination of fields is supported."""
        check_state_use(self, "parameters.")
        details = "parameters.decoder_input_details"
        if self.parameters.decoder_input_details and self.stream:
            raise FieldError(details, f"{details} requires stream to be false", "not_supported")
        if self.parameters.decoder_input_details and not self.parameters.details:
            raise FieldError(details, f"{details} requires parameters.details to be true", "needs_details")
        return self


def check_state_use(request: Any, prefix: str, lists: Sequence[str] = ()) -> None:
    """Check that a state is only used in recurrent mode and for one text.

    Args:
        request: Request with the fields `state` and `return_state`.
        prefix: Prefix of the fields `decode` and `n`: "parameters." or "".
        lists: Names of the fields that contain several texts.

    Raises:
        FieldError: If the request does not support a state (`no_state`).
    """
    options = request.parameters if prefix else request
    if request.state is None and request.return_state is False:
        return
    if options.decode == "attention":
        raise FieldError(
            f"{prefix}decode", f'{prefix}decode must be "recurrent" to continue or return a state', "no_state"
        )
    stores_state = request.return_state is not False or (request.state or "").startswith(SESSION_PREFIX)
    if stores_state and getattr(options, "n", 1) > 1:
        raise FieldError(f"{prefix}n", f"{prefix}n must be 1 to return or store a state", "no_state")
    for name in lists:
        raise FieldError(
            name, f"{name} must be one text or one list of token ids to continue or return a state", "no_state"
        )
