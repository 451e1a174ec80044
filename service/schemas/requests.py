"""What the routes of text and filters take; a field's bounds stand here and nowhere else."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, SkipValidation, model_validator

from rfa.runtime.choices import MergeMethod, Mode
from rfa.runtime.state.names import SESSION_PREFIX
from rfa.runtime.uncertainty.alarms import LARGEST_RATE, MOST_QUIET, RATE_PATTERN, Alarm, Direction, alarm
from rfa.runtime.uncertainty.input import (
    LARGEST_HORIZON,
    LARGEST_OBSERVATION,
    LARGEST_SEED,
    LARGEST_TIME,
    LEAST_NOISE,
    MOST_COMPONENTS,
    MOST_HORIZONS,
    MOST_LEVELS,
    MOST_NOISE,
    MOST_SAMPLES,
)
from rfa.service.neutral import NullIs, OneOf, Only
from rfa.service.schemas.arrays import takes_arrays
from rfa.service.schemas.base import FieldError, Request
from rfa.service.schemas.system import SystemRequest

MAX_ITEMS = 1_000_000
MAX_SAMPLES = 16
MOST_MERGED = 8
# Rows after the last one: at most, and of a list of numbers and nothing else.
MOST_AHEAD = 1024
USUAL_AHEAD = 16
DECODE = (
    "`recurrent`: constant-memory filter slots; `attention`: exact attention over a growing cache; null is the first "
    "where the model has slots, else the second (`modes` of /info and /v1/models)"
)

ModelName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
StopSequence = Annotated[str, Field(min_length=1, max_length=256)]
Component = Annotated[float, Field(ge=-LARGEST_OBSERVATION, le=LARGEST_OBSERVATION)]
Observation = Annotated[list[Component | None], Field(min_length=1, max_length=MOST_COMPONENTS, fail_fast=True)]
Time = Annotated[float, Field(ge=-LARGEST_TIME, le=LARGEST_TIME)]
NoiseScale = Annotated[float, Field(ge=LEAST_NOISE, le=MOST_NOISE)]
# Lists over HTTP as JSON, float64 arrays where they came as Arrow: NaN is a missing component there.
Times = Annotated[list[Time], Field(max_length=MAX_ITEMS, fail_fast=True), takes_arrays(LARGEST_TIME, may_miss=False)]
Column = Annotated[
    list[Component | None],
    Field(max_length=MAX_ITEMS, fail_fast=True),
    takes_arrays(LARGEST_OBSERVATION, may_miss=True),
]
Level = Annotated[float, Field(gt=0, lt=1)]
Horizon = Annotated[float, Field(gt=0, le=LARGEST_HORIZON)]
# What is told of each observation, of a recorded series and of a live stream.
Levels = Annotated[
    list[Level] | None,
    Field(
        max_length=MOST_LEVELS,
        fail_fast=True,
        description="of the intervals, each once; null is the model's calibrated levels",
    ),
]
Horizons = Annotated[
    list[Horizon],
    Field(
        max_length=MOST_HORIZONS, fail_fast=True, description="forecast so far ahead of each observation, in time units"
    ),
]
# What is told of each observation beside `index` and `t`.
StepField = Literal[
    "mean",
    "std",
    "precision",
    "confidence",
    "weight",
    "innovation",
    "nis",
    "anomaly",
    "alarm",
    "interval",
    "forecast",
    "samples",
]
StepFields = Annotated[
    list[StepField] | None,
    Field(
        min_length=1,
        max_length=12,
        description="what to tell of each observation beside its index and time; null is everything. "
        "Fewer fields take less time and fewer bytes",
    ),
]
SeriesName = Annotated[str, Field(max_length=256)]
ColumnName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]
# Of every route that makes text.
LatentNoise = Annotated[
    float,
    Field(
        ge=0,
        le=10,
        description="scale of the latent sample of the last layer, a new one for each token; 0 is its mean, for which "
        "confidence is calibrated. With 1 a drawn token comes from the mixture over the latent, of which the loss on "
        "unseen text is a little lower (docs/RESULTS.md, Uncertainty of tokens); n continuations have samples of "
        "their own",
    ),
]
ReturnLatents = Annotated[
    bool,
    NullIs(False),
    Field(description="also the last layer's latent of every token that is made: the sample, or the mean"),
]
Samples = Annotated[int, Field(ge=0, le=MOST_SAMPLES, description="draws from the posterior of each step")]

PassesChoice = Annotated[
    int | None,
    Field(
        ge=1,
        le=64,
        description="reweighting passes K of the robust weight, up to the model's own; null is those. A linear filter "
        "takes fewer: then an outlier is weighed by less of what others say of it",
    ),
]
Input = Annotated[list[Component], Field(min_length=1, max_length=MOST_COMPONENTS)]
INPUT = (
    "what drives the state, per unit of time, since the observation before: one number for each part of the model's "
    "state. Linear filters of up to 16 take it. Forecasts hold the last one"
)
BIAS = "known offset of the measurement, one number for each component: it is taken off before anything else"


STATE = "where to go on: a `state` that a reply gave, or `session:NAME`, which is stored again afterwards"
StateReference = Annotated[str, Field(min_length=1, max_length=2_000_000)]
NewSession = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^session:[A-Za-z0-9_-]{1,64}$")]
ReturnState = Annotated[
    bool | NewSession,
    OneOf("true, false, or `session:NAME` with a NAME of 1 to 64 letters, digits, _ and -"),
    Field(description="true: the reply holds the state after it; `session:NAME`: the server keeps it under a new name"),
]


# Of what other servers know and this one does not do.
NEUTRAL = "for clients that send it: only the value that changes nothing"


class GenerateParameters(Request):
    """How to continue the prompt; names and meanings are TGI's where TGI has them."""

    max_new_tokens: Annotated[int, NullIs(100)] = Field(
        default=100, ge=1, le=1_000_000, description="the text ends after so many at the latest"
    )
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
    n: int = Field(default=1, ge=1, le=MAX_SAMPLES, description="independent continuations")
    return_latents: ReturnLatents = False
    deadline_ms: int | None = Field(
        default=None, ge=1, le=3_600_000, description='after so long the text ends as it is: finish_reason "deadline"'
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
        description="up to `max_prompt_tokens` of /info, or more of which parameters.truncate keeps so many",
    )
    model: ModelName | None = Field(default=None, description="null is the first language model of the server")
    parameters: GenerateParameters = Field(default_factory=GenerateParameters, description="how to continue it")
    stream: bool = Field(default=False, description="send tokens as they come, as server-sent events")
    state: StateReference | None = Field(default=None, description=STATE)
    return_state: ReturnState = False

    @model_validator(mode="before")
    @classmethod
    def check_places(cls, document: Any) -> Any:
        """A field of the parameters stands in them, one of the request beside them: other servers have it otherwise."""
        beside = document if type(document) is dict else {}
        within = beside.get("parameters")
        of_these, of_those = GenerateParameters.model_fields.keys(), cls.model_fields.keys()
        for name in beside:
            if name in of_these - of_those:
                raise FieldError(name, f"{name} belongs in parameters.", "extra_forbidden")
        for name in within if type(within) is dict else ():
            if name in of_those - of_these:
                path = f"parameters.{name}"
                raise FieldError(path, f"{path}: {name} belongs beside parameters, not in them.", "extra_forbidden")
        return document

    @model_validator(mode="after")
    def check_state(self) -> GenerateRequest:
        """A state is of one continuation of the recurrent mode."""
        uses_state = self.state is not None or self.return_state is not False
        if uses_state and self.parameters.decode == "attention":
            name = "parameters.decode"
            raise FieldError(name, f'{name} must be "recurrent" with a state', "no_state")
        keeps_state = self.return_state is not False or (self.state or "").startswith(SESSION_PREFIX)
        if keeps_state and self.parameters.n > 1:
            raise FieldError("parameters.n", "parameters.n must be 1 where the state is kept", "no_state")
        return self


SYSTEM = (
    "in the place of `model`: what filters, by its matrices or as a preset, and no bundle. A state goes on with the "
    "same one"
)


def check_system(system: SystemRequest | None, model: str | None, mode: Mode = "recurrent") -> None:
    """A system is in the place of a model, and has no attention mode.

    Raises:
        FieldError
    """
    if system is None:
        return
    if model is not None:
        raise FieldError("system", "system stands in the place of model: give one of them", "model_and_system")
    if mode != "recurrent":
        message = 'mode must be "recurrent" with a system: attention runs on the graphs of a bundle'
        raise FieldError("mode", message, "no_such_mode")


class AlarmRequest(Request):
    """When an observation is an alarm: where it is as rare on its stream as a rate says, and what else is asked of it.
    The rate holds on streams that stay as they are, for the stream's own scores are what it is held against."""

    rate: Annotated[
        Annotated[float, Field(gt=0, le=LARGEST_RATE)] | Annotated[str, Field(pattern=RATE_PATTERN, max_length=32)],
        OneOf('a share of the observations, above 0 and at most 0.5, or a number per time such as "1/day"'),
    ] = Field(
        description="a share of the observations, or a number per second, minute, hour, day or week, where times are "
        'in seconds: "1/day"'
    )
    direction: Direction = Field(default="both", description="above what was expected, below it, or both")
    min_deviation: float = Field(
        default=0.0, ge=0, le=LARGEST_OBSERVATION, description="no alarm nearer to what was expected"
    )
    range: Annotated[list[Component | None], Field(min_length=2, max_length=2)] | None = Field(
        default=None,
        description="lowest and highest value, null is no limit: what lies outside is an alarm however rare it is. Not "
        "with `input`",
    )
    quiet: int = Field(
        default=0,
        ge=0,
        le=MOST_QUIET,
        description="so many observations after an alarm only what is rarer by far (a tenth more digits) is another",
    )

    @model_validator(mode="after")
    def check_range(self) -> Self:
        """The limits are in order."""
        low, high = self.range or (None, None)
        if low is not None and high is not None and low > high:
            raise FieldError("alarm.range", "alarm.range must begin with its lower limit", "out_of_range")
        return self

    def rule(self) -> Alarm:
        """As the filter takes it."""
        low, high = self.range or (None, None)
        return alarm(
            self.rate, direction=self.direction, min_deviation=self.min_deviation, within=(low, high), quiet=self.quiet
        )


# Fields of a series that may stand beside `series` as well, for all of them.
OF_ALL_OR_EACH = frozenset({"return_state", "system"})


# What a list of numbers alone is called.
ONLY_COLUMN = "y"


def _named(values: Any) -> Any:
    """A list alone as a column."""
    return {ONLY_COLUMN: values} if isinstance(values, list) else values


NamedColumns = Annotated[
    dict[ColumnName, Column], BeforeValidator(_named, json_schema_input_type=dict[ColumnName, Column] | Column)
]


class FilterSeries(Request):
    """What is of one series: its observations, and where it goes on."""

    times: Times | None = Field(
        default=None, description="non-decreasing, in the model's time unit; null is 0, 1, 2, …"
    )
    observations: list[Observation | None] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_ITEMS,
        fail_fast=True,
        description="rows, up to `max_observations` of /info; null predicts only, a null component is missing. "
        "Either these or `values`",
    )
    values: NamedColumns | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_COMPONENTS,
        description="the same as columns by name, in the order of the model's components; null is missing. "
        f"A list alone is one column, {ONLY_COLUMN}. The reply is in columns, too",
    )
    noise: list[NoiseScale | None] | None = Field(
        default=None,
        max_length=MAX_ITEMS,
        fail_fast=True,
        description="scale of the measurement noise, one per observation; null is 1",
    )
    input: list[Input | None] | None = Field(
        default=None, max_length=MAX_ITEMS, fail_fast=True, description=f"one per observation, null is none: {INPUT}"
    )
    bias: list[Input | None] | None = Field(
        default=None, max_length=MAX_ITEMS, fail_fast=True, description=f"one per observation, null is none: {BIAS}"
    )
    system: SystemRequest | None = Field(default=None, description=SYSTEM)
    state: StateReference | None = Field(default=None, description=STATE)
    return_state: ReturnState = False


class FilterRequest(FilterSeries):
    """Observations of a noisy system."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "times": [0.0, 0.1, 0.25],
                    "observations": [[1.0, 0.2], None, [0.7, None]],
                    "levels": [0.5, 0.9],
                    "horizon": [0.1],
                },
                {
                    "series": {
                        "kitchen": {"times": [0, 60, 120], "values": {"celsius": [21.0, 21.2, None]}},
                        "hall": {"times": [0, 60], "values": {"celsius": [18.1, 18.0], "percent": [50, 51]}},
                    },
                    "levels": [0.9],
                },
            ]
        }
    )

    model: ModelName | None = Field(
        default=None,
        description="null is the first model that suits any numbers: `series`, a trained network, or `auto` where that "
        "is not served; `auto-joint` judges rows by their columns' correlation",
    )
    series: dict[SeriesName, SkipValidation[FilterSeries]] | None = Field(
        default=None,
        min_length=1,
        description="many series by name, up to `max_series` of /info, with `max_series_observations` together; the "
        "other fields of the request are of each. A series has the reply that it has alone, and one that is refused is "
        "refused alone",
    )
    levels: Levels = None
    horizon: Horizons = Field(default_factory=list)
    ahead: int | None = Field(
        default=None,
        ge=0,
        le=MOST_AHEAD,
        description="rows that come next, at the usual lag of `times`, else of those before `state`, to forecast once "
        "after the last observation: in `ahead` of a reply to `values`. A series that goes on has the intervals of one "
        f"request where each of its requests asked for as many. null is {USUAL_AHEAD} where `values` is a list alone, "
        "without `times` and `horizon`, else none",
    )
    samples: Samples = 0
    alarm: AlarmRequest | None = Field(default=None, description="tell which observations are alarms; null is none")
    fields: StepFields = None
    passes: PassesChoice = None
    seed: Seed | None = Field(default=None, description="null draws one; the reply tells which")
    mode: Mode = Field(default="recurrent", description="attention looks at all earlier observations of the request")
    smooth: bool = Field(default=False, description="also the trajectory given all observations")
    deadline_ms: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description='after so long the series ends with the observations taken so far: finish_reason "deadline"',
    )
    stream: bool = Field(default=False, description="send each step as soon as it is final")

    @property
    def rows_ahead(self) -> int:
        """Rows to forecast after the last observation."""
        if self.ahead is not None:
            return self.ahead
        is_list_alone = self.values is not None and list(self.values) == [ONLY_COLUMN] and self.times is None
        return USUAL_AHEAD if is_list_alone and not self.horizon and self.mode == "recurrent" else 0

    @model_validator(mode="after")
    def check_ahead(self) -> Self:
        """It is told in columns, from a state."""
        if self.ahead and self.values is None and self.series is None:
            raise FieldError("ahead", "ahead is told in columns: give `values`, or ask by `horizon`", "no_values")
        if self.ahead and self.mode != "recurrent":
            raise FieldError("mode", 'mode must be "recurrent" with ahead', "no_state")
        return self

    @model_validator(mode="after")
    def check_state(self) -> Self:
        """A state is of the recurrent mode, and so is a system."""
        check_system(self.system, self.model, self.mode)
        if self.mode != "recurrent" and (self.state is not None or self.return_state is not False):
            raise FieldError("mode", 'mode must be "recurrent" with a state', "no_state")
        return self

    @model_validator(mode="after")
    def check_lengths_and_order(self) -> Self:
        """Hold `times` and `noise` to the number of observations, and `times` to its order."""
        if self.series is not None:
            return self.check_series()
        count = self.check_form()
        if self.times is None and self.alarm is not None and isinstance(self.alarm.rate, str):
            raise FieldError("alarm.rate", "alarm.rate per time needs times, in seconds", "no_times")
        if self.times is not None:
            if len(self.times) != count:
                raise FieldError("times", f"times must have one value per observation, {count}", "length_mismatch")
            for index in np.flatnonzero(np.diff(self.times) < 0)[:1].tolist():
                name = f"times[{index + 1}]"
                raise FieldError(name, f"{name} must not be smaller than the time before it", "time_not_monotonic")
        for name in ("noise", "input", "bias"):
            given = getattr(self, name)
            if given is not None and len(given) != count:
                raise FieldError(name, f"{name} must have one value per observation, {count}", "length_mismatch")
        return self

    def check_series(self) -> Self:
        """What is of one series stands in each of many."""
        for name in FilterSeries.model_fields:
            if name not in OF_ALL_OR_EACH and getattr(self, name) is not None:
                raise FieldError(name, f"{name} is of one series: give it in each of series", "of_each_series")
        if isinstance(self.return_state, str):
            message = "return_state names a session of one series: give it in each of series"
            raise FieldError("return_state", message, "of_each_series")
        return self

    def check_form(self) -> int:
        """Rows or columns, and how many observations they hold."""
        if (self.observations is None) == (self.values is None):
            message = "either observations or values, or series, must be given"
            raise FieldError("observations", message, "rows_or_columns")
        if self.values is None:
            return len(self.observations or ())
        counts = {name: len(column) for name, column in self.values.items()}
        count = next(iter(counts.values()))
        for name, length in counts.items():
            if length != count or not length:
                field = f"values.{name}"
                expected = "at least one value" if not length else f"as many values as the other columns, {count}"
                raise FieldError(field, f"{field} must have {expected}", "length_mismatch")
        if self.stream or self.samples:
            field = "stream" if self.stream else "samples"
            raise FieldError(field, f"{field} is of rows: give observations in the place of values", "rows_only")
        return count


class MergeRequest(Request):
    """Beliefs of several streams of one filter about the same system."""

    model: ModelName | None = Field(default=None, description="null is the first filter bundle of the server")
    system: SystemRequest | None = Field(default=None, description=SYSTEM)
    states: list[StateReference] = Field(
        min_length=2,
        max_length=MOST_MERGED,
        fail_fast=True,
        description="each a `state` that a reply gave, `session:NAME` or `session:NAME@STEP`; none of them changes",
    )
    method: MergeMethod = Field(
        default="covariance_intersection",
        description="`precision`: adds what each state knows, as if they shared nothing but `prior`. "
        "`covariance_intersection`: never too sure, whatever they share",
    )
    prior: StateReference | None = Field(
        default=None,
        description="with `precision`: the state that all of them went on from, whose share then counts once",
    )
    t: Time | None = Field(default=None, description="of the merged belief; null is the latest time of the states")
    levels: Levels = None
    horizon: Horizons = Field(default_factory=list)
    return_state: ReturnState = True

    @model_validator(mode="after")
    def check_prior(self) -> Self:
        """Only a sum of precisions can count a prior twice."""
        check_system(self.system, self.model)
        if self.prior is not None and self.method != "precision":
            raise FieldError("prior", 'prior is of method "precision" only', "needs_precision")
        return self


class FilterStreamRequest(Request):
    """First frame of a live stream: what to tell about each observation."""

    model: ModelName | None = Field(
        default=None,
        description="null is the first model that suits any numbers: `series`, a trained network, or `auto` where that "
        "is not served; `auto-joint` judges rows by their columns' correlation",
    )
    system: SystemRequest | None = Field(default=None, description=SYSTEM)
    size: int = Field(
        default=1, ge=1, le=MOST_COMPONENTS, description="columns of an observation, where the model takes any number"
    )
    levels: Levels = None
    horizon: Horizons = Field(default_factory=list)
    samples: Samples = 0
    alarm: AlarmRequest | None = Field(default=None, description="tell which observations are alarms; null is none")
    fields: StepFields = None
    passes: PassesChoice = None
    seed: Seed | None = Field(
        default=None, description="null is the seed of the state, or draws one; the reply tells which"
    )
    state: StateReference | None = Field(default=None, description=STATE)
    return_state: ReturnState = False
    state_every: int | None = Field(
        default=None, ge=1, le=1_000_000, description="also the state with every so many-th step"
    )

    @model_validator(mode="after")
    def check_model(self) -> Self:
        """A system is in the place of a model."""
        check_system(self.system, self.model)
        return self


class StreamObservation(Request):
    """A frame of a live stream: one observation."""

    t: Time | None = Field(default=None, description="not before the time ahead of it; null is the step's index")
    y: Observation | None = Field(description="null predicts only; a null component is missing")
    noise: NoiseScale | None = Field(default=None, description="scale of the measurement noise; null is 1")
    input: Input | None = Field(default=None, description=INPUT)
    bias: Input | None = Field(default=None, description=BIAS)


class StreamClose(Request):
    """The last frame of a live stream."""

    close: bool = Field(description="true")

    @model_validator(mode="after")
    def check_close(self) -> Self:
        """Only true closes; 1 is not true."""
        if not self.close:
            raise FieldError("close", "close must be true", "literal_error")
        return self
