"""The JSON of every route: strict types, every field bounded, unknown fields refused.

Requests are validated by these models. Replies are built by the engine as plain dataclasses and encoded once; the
reply models here document them, and the tests hold the two together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rfa.service.neutral import NullIs, OneOf, Only
from rfa.service.state.names import SESSION_PREFIX

LARGEST_OBSERVATION = 1e12
LARGEST_TIME = 1e15
LARGEST_SEED = 2**64 - 1
MAX_ITEMS = 1_000_000
MAX_SAMPLES = 16
MOST_UNKNOWN = 16

ModelName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
StopSequence = Annotated[str, Field(min_length=1, max_length=256)]
Component = Annotated[float, Field(ge=-LARGEST_OBSERVATION, le=LARGEST_OBSERVATION)]
Observation = Annotated[list[Component | None], Field(min_length=1, max_length=4096, fail_fast=True)]
Time = Annotated[float, Field(ge=-LARGEST_TIME, le=LARGEST_TIME)]
NoiseScale = Annotated[float, Field(ge=1e-6, le=1e6)]
Level = Annotated[float, Field(gt=0, lt=1)]
Horizon = Annotated[float, Field(gt=0, le=1e9)]


StateReference = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2_000_000,
        description="where to go on: a `state` that a reply gave, or `session:NAME`, which is stored again afterwards",
    ),
]
NewSession = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^session:[A-Za-z0-9_-]{1,64}$")]
ReturnState = Annotated[
    bool | NewSession,
    OneOf("true, false, or `session:NAME` with a NAME of 1 to 64 letters, digits, _ and -"),
    Field(description="true: the reply holds the state after it; `session:NAME`: the server keeps it under a new name"),
]
ReplyState = Annotated[str | None, Field(description="where to go on: a sealed token or `session:NAME@STEP`")]


class _Request(BaseModel):
    """Lists stop at their first fault (`fail_fast`), and few of many unknown fields are looked at: a list of a hundred
    thousand complaints, of which one is told, took seconds and gigabytes."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def leave_out_most_unknown_fields(cls, document: Any) -> Any:
        """The document, with the first `MOST_UNKNOWN` of its unknown fields; each of them refuses it."""
        if type(document) is not dict or len(document) <= MOST_UNKNOWN:
            return document
        unknown = [name for name in document if name not in cls.model_fields]
        left_out = set(unknown[MOST_UNKNOWN:])
        return {name: value for name, value in document.items() if name not in left_out} if left_out else document


class _Reply(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class GenerateParameters(_Request):
    """How to continue the prompt; names and meanings are TGI's where TGI has them."""

    max_new_tokens: Annotated[int, NullIs(100)] = Field(default=100, ge=1, le=1_000_000)
    temperature: float | None = Field(default=None, ge=0, le=100, description="0 is greedy; null is 1")
    top_k: int | None = Field(default=None, ge=1, le=1_000_000, description="keep the k most probable tokens")
    top_p: float | None = Field(default=None, gt=0, le=1, description="keep the smallest set with this probability")
    do_sample: bool | None = Field(
        default=None, description="false is greedy; null samples if temperature, top_k or top_p is given"
    )
    seed: Seed | None = Field(default=None, description="null draws one; the reply tells which")
    stop: list[StopSequence] = Field(
        default_factory=list,
        max_length=16,
        fail_fast=True,
        description="ends the text before the first of these; not part of it",
    )
    details: bool = Field(default=True, description="tokens, confidence and timings in the reply")
    top_n_tokens: Annotated[int, NullIs(0)] = Field(
        default=0, ge=0, le=32, description="also the n most probable tokens at each position"
    )
    return_full_text: Annotated[bool, NullIs(False)] = Field(
        default=False, description="put the prompt before generated_text"
    )
    truncate: int | None = Field(default=None, ge=1, le=1_000_000, description="keep only the last n prompt tokens")
    # TGI has these; its clients send some of them at these values.
    best_of: Annotated[Any, Only(None, 1)] = None
    decoder_input_details: Annotated[Any, Only(None, False)] = None
    repetition_penalty: Annotated[Any, Only(None, 1.0)] = None
    frequency_penalty: Annotated[Any, Only(None, 0.0)] = None
    typical_p: Annotated[Any, Only(None, 1.0)] = None
    watermark: Annotated[Any, Only(None, False)] = None
    grammar: Annotated[Any, Only(None)] = None
    adapter_id: Annotated[Any, Only(None)] = None
    decode: Literal["recurrent", "attention"] = Field(
        default="recurrent", description="constant-memory filter slots, or exact attention over a growing cache"
    )
    latent_noise: float = Field(default=0.0, ge=0, le=10, description="scale of the latent sample of the last layer")
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES, description="independent continuations")
    return_latents: bool = Field(default=False, description="the last layer's latent of every token")
    deadline_ms: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description='after so long the text ends as it is: finish_reason "deadline"',
    )


class GenerateRequest(_Request):
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
        description="up to `max_prompt_tokens` of /info, or more of which parameters.truncate keeps so many",
    )
    model: ModelName | None = Field(default=None, description="null is the first language model of the server")
    parameters: GenerateParameters = Field(default_factory=lambda: GenerateParameters())
    stream: bool = False
    state: StateReference | None = None
    return_state: ReturnState = False

    @model_validator(mode="after")
    def check_state(self) -> GenerateRequest:
        """A state is of one continuation of the recurrent mode."""
        uses_state = self.state is not None or self.return_state is not False
        if uses_state and self.parameters.decode != "recurrent":
            name = "parameters.decode"
            raise FieldError(name, f'{name} must be "recurrent" with a state', "no_state")
        keeps_state = self.return_state is not False or (self.state or "").startswith(SESSION_PREFIX)
        if keeps_state and self.parameters.n > 1:
            raise FieldError("parameters.n", "parameters.n must be 1 where the state is kept", "no_state")
        return self


class FilterRequest(_Request):
    """Observations of a noisy system."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "times": [0.0, 0.1, 0.25],
                    "observations": [[1.0, 0.2], None, [0.7, None]],
                    "levels": [0.5, 0.9],
                    "horizon": [0.1],
                }
            ]
        }
    )

    model: ModelName | None = Field(default=None, description="null is the first filter of the server")
    times: list[Time] | None = Field(
        default=None,
        max_length=MAX_ITEMS,
        fail_fast=True,
        description="non-decreasing, in the model's time unit; null is 0, 1, 2, …",
    )
    observations: list[Observation | None] = Field(
        min_length=1,
        max_length=MAX_ITEMS,
        fail_fast=True,
        description="up to `max_observations` of /info; null predicts only, a null component is missing",
    )
    noise: list[NoiseScale | None] | None = Field(
        default=None,
        max_length=MAX_ITEMS,
        fail_fast=True,
        description="scale of the measurement noise, one per observation; null is 1",
    )
    levels: list[Level] | None = Field(
        default=None,
        max_length=16,
        fail_fast=True,
        description="of the intervals, each once; null is the model's calibrated levels",
    )
    horizon: list[Horizon] = Field(
        default_factory=list,
        max_length=256,
        fail_fast=True,
        description="forecast so far ahead of each observation, in time units",
    )
    samples: int = Field(default=0, ge=0, le=1024, description="draws from the posterior of each step")
    seed: Seed | None = Field(default=None, description="null draws one; the reply tells which")
    mode: Literal["recurrent", "attention"] = "recurrent"
    smooth: bool = Field(default=False, description="also the trajectory given all observations")
    stream: bool = False
    state: StateReference | None = None
    return_state: ReturnState = False

    @model_validator(mode="after")
    def check_state(self) -> Self:
        """A state is of the recurrent mode."""
        if self.mode != "recurrent" and (self.state is not None or self.return_state is not False):
            raise FieldError("mode", 'mode must be "recurrent" with a state', "no_state")
        return self

    @model_validator(mode="after")
    def check_lengths_and_order(self) -> Self:
        """Hold `times` and `noise` to the number of observations, and `times` to its order."""
        count = len(self.observations)
        if self.times is not None:
            if len(self.times) != count:
                raise FieldError("times", f"times must have one value per observation, {count}", "length_mismatch")
            for index, (earlier, later) in enumerate(zip(self.times, self.times[1:], strict=False)):
                if later < earlier:
                    name = f"times[{index + 1}]"
                    raise FieldError(name, f"{name} must not be smaller than the time before it", "time_not_monotonic")
        if self.noise is not None and len(self.noise) != count:
            raise FieldError("noise", f"noise must have one value per observation, {count}", "length_mismatch")
        return self


class FilterStreamRequest(_Request):
    """First frame of a live stream: what to tell about each observation."""

    model: ModelName | None = Field(default=None, description="null is the first filter of the server")
    levels: list[Level] | None = Field(
        default=None,
        max_length=16,
        fail_fast=True,
        description="of the intervals, each once; null is the model's calibrated levels",
    )
    horizon: list[Horizon] = Field(
        default_factory=list,
        max_length=256,
        fail_fast=True,
        description="forecast so far ahead of each observation, in time units",
    )
    samples: int = Field(default=0, ge=0, le=1024, description="draws from the posterior of each step")
    seed: Seed | None = Field(
        default=None, description="null is the seed of the state, or draws one; the reply tells which"
    )
    state: StateReference | None = None
    return_state: ReturnState = False
    state_every: int | None = Field(
        default=None, ge=1, le=1_000_000, description="also the state with every so many-th step"
    )


class StreamObservation(_Request):
    """A frame of a live stream: one observation."""

    t: Time | None = Field(default=None, description="not before the time ahead of it; null is the step's index")
    y: Observation | None = Field(description="null predicts only; a null component is missing")
    noise: NoiseScale | None = Field(default=None, description="scale of the measurement noise; null is 1")


class StreamClose(_Request):
    """The last frame of a live stream."""

    close: bool = Field(description="true")

    @model_validator(mode="after")
    def check_close(self) -> Self:
        """Only true closes; 1 is not true."""
        if not self.close:
            raise FieldError("close", "close must be true", "literal_error")
        return self


class FieldError(ValueError):
    """A rule between fields is broken; carries the field that the client should change."""

    def __init__(self, param: str, message: str, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message
        self.code = code


class ErrorBody(_Reply):
    """What went wrong."""

    message: str = Field(description="names the field and what was expected")
    type: str = Field(description="class of the failure, one per status")
    param: str | None = Field(description="the field, as a path")
    code: str = Field(description="the precise reason")


class ErrorReply(_Reply):
    """The one error shape, of every status and in streams."""

    error: ErrorBody


class Token(_Reply):
    """A generated token. The texts of all tokens, joined, are `generated_text`."""

    id: int
    text: str = Field(description="text that this token made final; empty while a character or stop is incomplete")
    logprob: float = Field(description="under the model itself, before temperature and filters")
    special: bool
    confidence: float = Field(ge=0, le=1, description="calibrated probability that this is the right next token")
    precision: float = Field(ge=0, description="total evidence of the last layer")


class TopToken(_Reply):
    """One of the most probable tokens at a position."""

    id: int
    text: str
    logprob: float
    special: bool


class GenerateTimings(_Reply):
    """Where the time went, milliseconds."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    tokens_per_second: float


FinishReason = Literal["length", "eos_token", "stop_sequence", "cancelled", "deadline", "error"]


class GenerateDetails(_Reply):
    """What is known of a continuation beside its text."""

    finish_reason: FinishReason
    generated_tokens: int
    input_length: int = Field(description="prompt tokens that the model saw")
    seed: int
    prefill: list[TopToken] = Field(description="always empty; kept for TGI clients")
    tokens: list[Token]
    top_tokens: list[list[TopToken]] | None
    latents: list[list[list[float]]] | None = Field(description="[tokens, heads, 2 D]")
    timings: GenerateTimings


class Continuation(_Reply):
    """One of `n` continuations."""

    generated_text: str
    details: GenerateDetails | None


class GenerateReply(_Reply):
    """The text and what is known of it."""

    generated_text: str
    details: GenerateDetails | None
    continuations: list[Continuation] | None = Field(description="all of them, the first included, when n > 1")
    state: ReplyState


class StreamDetails(_Reply):
    """Details of a streamed continuation; its tokens were sent before."""

    finish_reason: FinishReason
    generated_tokens: int
    input_length: int
    seed: int
    timings: GenerateTimings


class StreamContinuation(_Reply):
    """One of `n` streamed continuations."""

    generated_text: str
    details: StreamDetails


class GenerateEvent(_Reply):
    """One line of the stream. The last one, and only it, has `generated_text` and `details`."""

    index: int = Field(description="position of the token in its continuation, from 1")
    sample: int = Field(description="which of the n continuations, from 0")
    token: Token | None = Field(description="null only when the deadline passed before the first token")
    top_tokens: list[TopToken] | None
    latent: list[list[float]] | None
    generated_text: str | None
    details: StreamDetails | None
    continuations: list[StreamContinuation] | None
    state: ReplyState


Interval = Annotated[list[float], Field(min_length=2, max_length=2)]


class ForecastPoint(_Reply):
    """A future observation."""

    t: float
    mean: list[float]
    std: list[float]
    interval: dict[str, list[Interval]]


class FilterStepReply(_Reply):
    """The state in observation units after one observation."""

    index: int
    t: float
    mean: list[float]
    std: list[float]
    precision: float
    confidence: float = Field(ge=0, le=1, description="that the next observation falls inside its 0.9 interval")
    weight: float | None = Field(description="share of the observation that the robust update used, (0, 1]")
    innovation: list[float | None] | None
    nis: float | None
    anomaly: float | None = Field(
        ge=0,
        le=1,
        description="share of less surprising observations, 1 is impossible: by the bundle's calibration at first, "
        "more and more by what this stream has shown. As rare as it says: above 0.99 about one in a hundred",
    )
    interval: dict[str, list[Interval]]
    forecast: list[ForecastPoint]
    samples: list[list[float]]


class SmoothedStep(_Reply):
    """The state given all observations."""

    index: int
    t: float
    mean: list[float]
    std: list[float]


class FilterTimings(_Reply):
    """Where the time went, milliseconds."""

    queue_ms: float
    compute_ms: float


class ForecastChecks(_Reply):
    """What became of the one-step forecasts of this request or stream. Its first observation had none."""

    scored: int = Field(description="components of observations that were forecast")
    coverage: dict[str, float | None] = Field(
        description="share of them inside the interval, by calibrated level; null where nothing was scored"
    )
    bound: float | None = Field(
        description="adaptive conformal guarantee: coverage differs from the level by at most this, whatever the data"
    )
    gamma: float = Field(description="step of the adaptation; the bound is about components / (gamma scored)")
    weighted_nis: float | None = Field(description="mean of weight × nis / components; about 1 for a sound filter")
    pit: Annotated[list[int], Field(min_length=10, max_length=10)] = Field(
        description="components by their place in the forecast distribution, in ten bins; even if it is right"
    )
    weighted_nis_bins: Annotated[list[int], Field(min_length=8, max_length=8)] = Field(
        description="observations by weight × nis / components: up to 0.1, 0.25, 0.5, 1, 2, 4, 8, and above. Up to 1 "
        "as chi-square says if the filter is right, above it fewer, for there the weight is below 1"
    )


class FilterReply(_Reply):
    """One step per observation, and the sequence as a whole."""

    model: str
    steps: list[FilterStepReply]
    smoothed: list[SmoothedStep] | None
    log_likelihood: float
    calibration: ForecastChecks
    seed: int
    timings: FilterTimings
    state: ReplyState


class FilterDone(_Reply):
    """The last line of a stream; the lines before it are steps."""

    done: Literal[True]
    model: str
    smoothed: list[SmoothedStep] | None
    log_likelihood: float
    calibration: ForecastChecks
    seed: int
    timings: FilterTimings
    state: ReplyState


class StreamReady(_Reply):
    """Answer to the first frame of a live stream."""

    ready: Literal[True]
    model: str
    seed: int
    observation_size: int
    levels: list[float]
    index: int = Field(description="of the first step: the observations that are in the state")


class StreamStepReply(FilterStepReply):
    """Answer to an observation of a live stream; `state` is left out where it is not due."""

    state: str | None = None


class StreamDone(_Reply):
    """The last frame of a live stream that ended well."""

    done: Literal[True]
    steps: int = Field(description="of this stream, without those in the state that it began with")
    log_likelihood: float = Field(description="of these steps")
    calibration: ForecastChecks
    reason: Literal["close", "idle", "drain"]
    state: ReplyState


class Health(_Reply):
    """The process is alive."""

    status: Literal["alive"]


class Ready(_Reply):
    """Bundles are loaded, agreed with their golden outputs, and the engine makes progress."""

    status: Literal["ready"]
    models: list[str]


class ModelInfo(_Reply):
    """One served bundle."""

    name: str
    kind: Literal["lm", "filter"]
    digest: str = Field(description="sha256 of the bundle's manifest")
    golden_values: int = Field(description="golden output values that the bundle reproduced at load")
    runtime: str = Field(description="what computes it: onnx, compiled or torch")
    config: dict[str, Any]
    metrics: dict[str, Any]
    calibration: dict[str, Any]


class Info(_Reply):
    """What runs here."""

    name: str
    version: str = Field(description="of the server")
    bundle_version: str = Field(
        description="short id of all bundles together, equal in every process of a server; it changes with a reload"
    )
    device: str
    versions: dict[str, str]
    models: list[ModelInfo]
    limits: dict[str, int | float]
