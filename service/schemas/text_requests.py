"""Requests of /generate."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from rfa.runtime.choices import Mode
from rfa.runtime.state.names import SESSION_PREFIX
from rfa.service.neutral import NullIs, Only
from rfa.service.schemas.base import FieldError, Request
from rfa.service.schemas.fields import SEED, InitialState, ModelName, ReturnState, Seed

MAX_SAMPLES = 16
DECODE = (
    "`recurrent`: filter slots in constant memory; `attention`: exact attention over a growing cache; null: "
    "`recurrent` if the model supports it (`modes` of /info and /v1/models)"
)
NEUTRAL = "for compatibility: only values without effect"

StopSequence = Annotated[str, Field(min_length=1, max_length=256)]
LatentNoise = Annotated[
    float,
    Field(
        ge=0,
        le=10,
        description="scale of the last layer's latent sample, drawn for each token; 0 uses its mean, for which "
        "confidence is calibrated",
    ),
]
ReturnLatents = Annotated[
    bool, NullIs(False), Field(description="return the last layer's latent of each generated token: sample or mean")
]


class GenerateParameters(Request):
    """How to continue the prompt; TGI's names and meanings where TGI has them."""

    max_new_tokens: Annotated[int, NullIs(100)] = Field(
        default=100, ge=1, le=1_000_000, description="maximum number of generated tokens"
    )
    temperature: float | None = Field(default=None, ge=0, le=100, description="0 is greedy; null is 1")
    top_k: int | None = Field(default=None, ge=1, le=1_000_000, description="sample from the k most probable tokens")
    top_p: float | None = Field(default=None, gt=0, le=1, description="sample from the smallest set with this share")
    do_sample: bool | None = Field(
        default=None, description="false is greedy; null samples if temperature, top_k or top_p is given"
    )
    seed: Seed | None = Field(default=None, description=SEED)
    stop: list[StopSequence] = Field(
        default_factory=list, max_length=16, fail_fast=True, description="the text ends before the first of these"
    )
    details: bool = Field(default=True, description="return tokens, confidence and timings")
    top_n_tokens: Annotated[int, NullIs(0)] = Field(
        default=0, ge=0, le=32, description="return the n most probable tokens at each position"
    )
    return_full_text: Annotated[bool, NullIs(False)] = Field(
        default=False, description="put the prompt before generated_text"
    )
    truncate: int | None = Field(default=None, ge=1, le=1_000_000, description="use only the last n prompt tokens")
    # Fields of TGI that its clients send with these values.
    best_of: Annotated[Any, Only(None, 1)] = Field(default=None, description=NEUTRAL)
    decoder_input_details: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)
    repetition_penalty: Annotated[Any, Only(None, 1.0)] = Field(default=None, description=NEUTRAL)
    frequency_penalty: Annotated[Any, Only(None, 0.0)] = Field(default=None, description=NEUTRAL)
    typical_p: Annotated[Any, Only(None, 1.0)] = Field(default=None, description=NEUTRAL)
    watermark: Annotated[Any, Only(None, False)] = Field(default=None, description=NEUTRAL)
    grammar: Annotated[Any, Only(None)] = Field(default=None, description=NEUTRAL)
    adapter_id: Annotated[Any, Only(None)] = Field(default=None, description=NEUTRAL)
    decode: Mode | None = Field(default=None, description=DECODE)
    latent_noise: LatentNoise = 0.0
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES, description="number of independent continuations")
    return_latents: ReturnLatents = False
    deadline_ms: int | None = Field(
        default=None, ge=1, le=3_600_000, description='end the text after this time, with finish_reason "deadline"'
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
        description="prompt of up to `max_prompt_tokens` of /info; longer ones need parameters.truncate",
    )
    model: ModelName | None = Field(default=None, description="null: the server's first language model")
    parameters: GenerateParameters = Field(default_factory=GenerateParameters, description="how to continue it")
    stream: bool = Field(default=False, description="send each token as a server-sent event")
    state: InitialState = None
    return_state: ReturnState = False

    @model_validator(mode="before")
    @classmethod
    def check_places(cls, document: Any) -> Any:
        """Errors say where a misplaced field belongs; other servers place some fields differently."""
        outer = document if type(document) is dict else {}
        inner = outer.get("parameters")
        parameters, own = GenerateParameters.model_fields.keys(), cls.model_fields.keys()
        for name in outer:
            if name in parameters - own:
                raise FieldError(name, f"{name} belongs in parameters.", "extra_forbidden")
        for name in inner if type(inner) is dict else ():
            if name in own - parameters:
                path = f"parameters.{name}"
                raise FieldError(path, f"{path}: {name} must be at the top level, not in it.", "extra_forbidden")
        return document

    @model_validator(mode="after")
    def check_state(self) -> GenerateRequest:
        """A state belongs to one continuation in recurrent mode."""
        uses_state = self.state is not None or self.return_state is not False
        if uses_state and self.parameters.decode == "attention":
            name = "parameters.decode"
            raise FieldError(name, f'{name} must be "recurrent" with a state', "no_state")
        stores_state = self.return_state is not False or (self.state or "").startswith(SESSION_PREFIX)
        if stores_state and self.parameters.n > 1:
            raise FieldError("parameters.n", "parameters.n must be 1 where the state is kept", "no_state")
        return self
