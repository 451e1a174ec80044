"""Requests of /generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from rfa.runtime.choices import Mode
from rfa.runtime.state.names import SESSION_PREFIX
from rfa.service.neutral import NullIs, Only
from rfa.service.schemas.base import FieldError, Request
from rfa.service.schemas.fields import SEED, InitialState, Milliseconds, ModelName, ReturnState, Seed, TokenCount
from rfa.service.schemas.sampling import NEUTRAL, TOP_P, SamplingFields, Share

MAX_SAMPLES = 16
DECODE = (
    "`recurrent` uses memory slots of constant size; `attention` uses exact attention over a cache that grows. null "
    "selects `recurrent` if the model supports it (see `modes` in /info and /v1/models)"
)

TextPasses = Annotated[
    int | None,
    Field(
        ge=1,
        le=64,
        description=(
            "number K of reweighting passes for each token, which compute the robust weights of the memory slots; in "
            "recurrent mode only. It is at most the model's own number, which null selects (see `passes` in /info and "
            "/v1/models). A state can be continued with another number"
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
            "scale of the noise in the latent sample of the last layer, which is drawn for each token. 0 uses the "
            "mean, for which the confidence is calibrated"
        ),
    ),
]
ReturnLatents = Annotated[
    bool,
    NullIs(False),
    Field(description="what to return of the last layer's latent for each generated token: a sample or the mean"),
]


class GenerateParameters(SamplingFields):
    """Options for generating text. Names and meanings are those of Text Generation Inference (TGI), if it has the
    option."""

    max_new_tokens: Annotated[int, NullIs(100)] = Field(
        default=100, ge=1, le=1_000_000, description="maximum number of generated tokens"
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=100,
        description="sampling temperature; 0 always selects the most probable token, and null means 1",
    )
    top_k: TokenCount | None = Field(default=None, description="sample only from the k most probable tokens")
    top_p: Share | None = Field(default=None, description=TOP_P)
    do_sample: bool | None = Field(
        default=None,
        description=(
            "whether to sample; false always selects the most probable token. null samples if temperature or a "
            "filter is set"
        ),
    )
    seed: Seed | None = Field(default=None, description=SEED)
    stop: list[StopSequence] = Field(
        default_factory=list, max_length=16, fail_fast=True, description="strings that end the text"
    )
    details: bool = Field(default=True, description="whether to return tokens, confidence and timings")
    top_n_tokens: Annotated[int, NullIs(0)] = Field(
        default=0, ge=0, le=32, description="number of most probable tokens to return at each position"
    )
    return_full_text: Annotated[bool, NullIs(False)] = Field(
        default=False, description="whether to prepend the prompt to generated_text"
    )
    truncate: TokenCount | None = Field(
        default=None, description="number of tokens to keep at the end of the prompt; earlier tokens are dropped"
    )
    # Fields that clients of TGI send with these values.
    return_tokens_as_token_ids: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)
    best_of: Annotated[Any, Only(None, 1)] = Field(default=None, description=NEUTRAL)
    decoder_input_details: Annotated[bool, NullIs(False)] = Field(
        default=False,
        description=(
            "whether to return the tokens of the prompt as `prefill` of the details; not supported with `stream`"
        ),
    )
    watermark: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)
    grammar: Annotated[Any, Only(None)] = Field(default=None, description=NEUTRAL)
    adapter_id: Annotated[Any, Only(None)] = Field(default=None, description=NEUTRAL)
    decode: Mode | None = Field(default=None, description=DECODE)
    passes: TextPasses = None
    latent_noise: LatentNoise = 0.0
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES, description="number of independent continuations to generate")
    return_latents: ReturnLatents = False
    deadline_ms: Milliseconds | None = Field(
        default=None,
        description='time limit in milliseconds. Texts that are not complete by then end with finish_reason "deadline"',
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
        description="prompt of up to `max_prompt_tokens` tokens (see /info); a longer prompt requires "
        "parameters.truncate",
    )
    model: ModelName | None = Field(
        default=None, description="name of the model; null selects the server's first language model"
    )
    parameters: GenerateParameters = Field(default_factory=GenerateParameters, description="options for the generation")
    stream: bool = Field(default=False, description="whether to send each token as a server-sent event")
    state: InitialState = None
    return_state: ReturnState = False

    @model_validator(mode="before")
    @classmethod
    def check_places(cls, document: Any) -> Any:
        """Reject fields in the wrong place, and state where they belong. Other servers place some fields
        differently."""
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
        """Reject combinations of fields that are not supported."""
        check_state_use(self, "parameters.")
        details = "parameters.decoder_input_details"
        if self.parameters.decoder_input_details and self.stream:
            raise FieldError(details, f"{details} requires stream to be false", "not_supported")
        if self.parameters.decoder_input_details and not self.parameters.details:
            raise FieldError(details, f"{details} requires parameters.details to be true", "needs_details")
        return self


def check_state_use(request: Any, prefix: str, lists: Sequence[str] = ()) -> None:
    """Reject a state unless the request generates one continuation in recurrent mode.

    Args:
        request: a request with `state` and `return_state`, and with `decode` and optionally `n` under `prefix`.
        lists: fields that may contain several texts.

    Raises:
        FieldError: With the code `no_state`.
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
