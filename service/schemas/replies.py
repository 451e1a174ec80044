"""Replies: the routes fill these, orjson encodes them, OpenAPI describes them.

What the runtime returns (`rfa.runtime.outputs`) is sent as it is; the replies of those names describe it by fields.

Nothing is validated when one is made. Neither frozen nor with slots, but for those of which many are kept: thousands
are made and sent each second; freezing costs more than the fields, and orjson takes twice as long over slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

import numpy as np
from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from rfa.runtime import outputs
from rfa.runtime.blocks import Blocks
from rfa.runtime.choices import MergeMethod, Mode
from rfa.service.schemas.base import Reply, says

Item = TypeVar("Item")
Kind = Literal["lm", "filter", "series"]
FinishReason = Literal["length", "eos_token", "stop_sequence", "cancelled", "deadline", "error"]
EndReason = Literal["close", "idle", "drain"]
FilterFinishReason = Literal["complete", "deadline", "cancelled"]


@dataclass(frozen=True)
class _Json:
    """Annotation: what the value is in JSON; a list of its items where nothing is said."""

    shown: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        shown = self.shown
        if shown is None:
            (item,) = get_args(get_args(source)[0])
            shown = list[item]  # type: ignore[valid-type]
        return handler.generate_schema(shown)


Many = Annotated[Sequence[Item] | Blocks, _Json()]
Rows = Annotated[np.ndarray, _Json(list[list[float]])]
Latents = Annotated[
    Many[Rows] | None, Field(description="of each token, [tokens, heads, 2 D]; null where they were not asked for")
]
Probability = Annotated[float, Field(ge=0, le=1)]
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]
State = Annotated[str | None, Field(description="where to go on: a sealed token or `session:NAME@STEP`")]


# Text.

CONFIDENCE = (
    "calibrated probability that this is the right next token. Nothing else that the model has at a step is served: "
    "on unseen text, evidence, residuals and variances of its filters tell right tokens from wrong ones hardly better "
    "than the softmax alone (docs/RESULTS.md, Uncertainty of tokens)"
)


@dataclass(frozen=True, slots=True)
class Token(Reply):
    """A generated token. The texts of all tokens, joined, are `generated_text`."""

    id: Annotated[int, says("in the model's vocabulary")]
    text: Annotated[str, says("text that this token made final; empty while a character or stop is incomplete")]
    logprob: Annotated[float, says("under the model itself, before temperature and filters")]
    special: Annotated[bool, says("whether it is a mark of the vocabulary and no text")]
    confidence: Annotated[Probability, says(CONFIDENCE)]


@dataclass(frozen=True, slots=True)
class TopToken(Reply):
    """One of the most probable tokens at a position."""

    id: Annotated[int, says("in the model's vocabulary")]
    text: Annotated[str, says("the token's own characters")]
    logprob: Annotated[float, says("under the model itself, before temperature and filters")]
    special: Annotated[bool, says("whether it is a mark of the vocabulary and no text")]


@dataclass(frozen=True)
class GenerateTimings(Reply):
    """Where the time went, milliseconds."""

    queue_ms: Annotated[float, says("until it was begun")]
    prefill_ms: Annotated[float, says("reading the prompt")]
    decode_ms: Annotated[float, says("from the first token to the last")]
    tokens_per_second: Annotated[float, says("while decoding")]


@dataclass
class StreamDetails(Reply):
    """Details of a streamed continuation; its tokens were sent before."""

    finish_reason: Annotated[FinishReason, says("why the text ends")]
    generated_tokens: Annotated[int, says("how many were made")]
    input_length: Annotated[int, says("prompt tokens that the model saw")]
    seed: Annotated[int, says("with it the same request makes the same text")]
    timings: Annotated[GenerateTimings, says("where the time went")]


@dataclass
class GenerateDetails(StreamDetails):
    """What is known of a continuation beside its text."""

    prefill: Annotated[list[TopToken], says("always empty; kept for TGI clients")]
    tokens: Annotated[Many[Token], says("those that were made, in order")]
    top_tokens: Annotated[
        Many[Many[TopToken]] | None, says("at each token the most probable ones; null where none were asked for")
    ]
    latents: Latents


@dataclass
class Continuation(Reply):
    """One of `n` continuations."""

    generated_text: Annotated[str, says("the new text, after the prompt if `return_full_text`")]
    details: Annotated[GenerateDetails | None, says("null where none were asked for")]


@dataclass
class GenerateReply(Continuation):
    """The text and what is known of it."""

    continuations: Annotated[list[Continuation] | None, says("all of them, the first included, when n > 1")]
    state: State


@dataclass
class StreamContinuation(Reply):
    """One of `n` streamed continuations."""

    generated_text: Annotated[str, says("the whole new text")]
    details: Annotated[StreamDetails, says("what is known of it beside its tokens")]


@dataclass
class GenerateEvent(Reply):
    """One line of the stream. The last one, and only it, has `generated_text` and `details`."""

    index: Annotated[int, says("position of the token in its continuation, from 1")]
    sample: Annotated[int, says("which of the n continuations, from 0")]
    token: Annotated[Token | None, says("null only when the deadline passed before the first token")]
    top_tokens: Annotated[
        Many[TopToken] | None, says("the most probable ones in the token's place; null where none were asked for")
    ]
    latent: Annotated[Rows | None, says("of the token, [heads, 2 D]; null where it was not asked for")]
    generated_text: Annotated[str | None, says("the whole new text, in the last event alone")]
    details: Annotated[StreamDetails | None, says("what is known of the text, in the last event alone")]
    continuations: Annotated[list[StreamContinuation] | None, says("all of them, in the last event alone, when n > 1")]
    state: State


# Filters.


@dataclass
class ForecastPoint(Reply):
    """A future observation."""

    t: Annotated[float, says("for which it is")]
    mean: Annotated[list[float], says("most probable value of each component")]
    std: Annotated[
        list[float], says("calibrated standard deviation of each component, the noise of its measurement included")
    ]
    interval: Annotated[dict[str, list[Interval]], says("by level, for each component lower and upper end")]


@dataclass
class FilterStepReply(Reply):
    """The state in observation units after one observation; where `fields` are asked for, these beside index and t."""

    always = ("index", "t")
    index: Annotated[int, says("position in the stream, from 0")]
    t: Annotated[float, says("of the observation")]
    mean: Annotated[list[float], says("the state, each component in units of the observation")]
    std: Annotated[list[float], says("its calibrated standard deviation")]
    precision: Annotated[
        float,
        says(
            "1 / calibrated variance of the state (mean over its components): times the squared error of the mean it "
            "is 1 on average over simulated data, rare large errors included. Of a bundle without that calibration "
            "1 / mean of std²"
        ),
    ]
    confidence: Annotated[Probability, says("that the next observation falls inside its 0.9 interval")]
    weight: Annotated[float | None, says("share of the observation that the robust update used, (0, 1]")]
    innovation: Annotated[
        list[float | None] | None,
        says("observation minus what was forecast; null where a component, or all, is missing"),
    ]
    nis: Annotated[
        float | None,
        says(
            "squared length of the innovation in units of its covariance: about the number of components if the filter "
            "is right; null where nothing was observed"
        ),
    ]
    anomaly: Annotated[
        float | None,
        says(
            "1 - the probability of so strange an observation, by what this stream has shown, as rare as it says: one "
            "in a thousand is above 0.999. The first 80 are placed by the bundle's calibration, the nth up to "
            "1 - 0.1 / n",
            ge=0,
            le=1,
        ),
    ]
    alarm: Annotated[bool | None, says("so rare as was asked for; null where no alarm was, and nothing was observed")]
    interval: Annotated[
        dict[str, list[Interval]], says("of the state, by level, for each component lower and upper end")
    ]
    forecast: Annotated[
        Annotated[Sequence[outputs.ForecastPoint], _Json(list[ForecastPoint])],
        says("of the observation at each horizon, in the request's order"),
    ]  # a list, or what is one block by block
    samples: Annotated[
        Rows, says("draws of the state, [samples, components]; with `smooth` the k-th of all steps are one path")
    ]  # not lists: a parked reply of them, 256 steps of 128 samples, took 5 ms to free


@dataclass
class StreamStepReply(FilterStepReply):
    """Answer to an observation of a live stream where its state is due; elsewhere it is the step alone."""

    state: Annotated[str | None, says("where to go on, every so many steps; null elsewhere")] = None
    warnings: Annotated[
        Annotated[list[outputs.FilterWarning] | None, _Json(list[FilterWarning] | None)],
        says("why not to trust the stream so far, with each state; null elsewhere"),
    ] = None


@dataclass(frozen=True)
class SmoothedStep(Reply):
    """The state given all observations."""

    index: Annotated[int, says("position in the stream, from 0")]
    t: Annotated[float, says("of the observation")]
    mean: Annotated[list[float], says("the state, each component in units of the observation")]
    std: Annotated[list[float], says("its calibrated standard deviation")]


@dataclass(frozen=True)
class FilterTimings(Reply):
    """Where the time went, milliseconds."""

    queue_ms: Annotated[float, says("until it was begun")]
    compute_ms: Annotated[float, says("from then to the end, turns of others included")]


@dataclass(frozen=True)
class AlarmChecks(Reply):
    """The alarms of this request or stream, against the rate that was asked for."""

    observations: Annotated[int, says("that could be alarms")]
    raised: Annotated[int, says("alarms")]
    expected: Annotated[float, says("alarms by the rate; direction, deviation and quiet make them fewer")]
    rate: Annotated[float, says("realised: share of the observations that were alarms")]
    bound: Annotated[
        tuple[float, float],
        says("where 95 % of such rates lie if alarms come one by one; where they come in runs it is wider"),
    ]


@dataclass(frozen=True)
class LeadChecks(Reply):
    """What became of the forecasts of one horizon whose time came within this request or stream."""

    horizon: Annotated[float, says("as it was asked for, in units of the times")]
    steps: Annotated[
        float | None, says("the same in typical lags of this stream, on average; null where nothing was scored")
    ]
    scored: Annotated[
        int,
        says(
            "components of observations that came at the time of a forecast. At most 32 forecasts wait at a time: of "
            "longer horizons every so many-th is scored; of horizons near each other those of the first"
        ),
    ]
    coverage: Annotated[
        dict[str, float | None],
        says("share of them inside the interval, by calibrated level; null where nothing was scored"),
    ]


@dataclass(frozen=True)
class ComponentChecks(Reply):
    """What became of the one-step forecasts of one component of the observations."""

    scored: Annotated[int, says("observations of it that were forecast")]
    coverage: Annotated[
        dict[str, float | None],
        says("share of them inside the interval, by calibrated level; null where nothing was scored"),
    ]


@dataclass(frozen=True)
class ForecastChecks(Reply):
    """What became of the one-step forecasts of this request or stream. Its first observation had none."""

    scored: Annotated[int, says("components of observations that were forecast")]
    coverage: Annotated[
        dict[str, float | None],
        says("share of them inside the interval, by calibrated level; null where nothing was scored"),
    ]
    bound: Annotated[
        float | None,
        says("adaptive conformal guarantee: coverage differs from the level by at most this, whatever the data"),
    ]
    gamma: Annotated[float, says("step of the adaptation; the bound is about components / (gamma scored)")]
    weighted_nis: Annotated[float | None, says("mean of weight × nis / components; about 1 for a sound filter")]
    pit: Annotated[
        list[int],
        says(
            "components by their place in the forecast distribution, in ten bins; even if it is right",
            min_length=10,
            max_length=10,
        ),
    ]
    weighted_nis_bins: Annotated[
        list[int],
        says(
            "observations by weight × nis / components: up to 0.1, 0.25, 0.5, 1, 2, 4, 8, and above. Up "
            "to 1 as chi-square says if the filter is right, above it fewer, for there the weight is below 1",
            min_length=8,
            max_length=8,
        ),
    ]
    alarms: Annotated[AlarmChecks | None, says("null where none were asked for")]
    outliers: Annotated[
        int, says("observations whose nis is rarer than one in a thousand, if the filter is right, of those forecast")
    ]
    leads: Annotated[list[LeadChecks], says("of each horizon, in the request's order")]
    components: Annotated[list[ComponentChecks], says("of each component of the observations, in their order")]


@dataclass(frozen=True)
class FilterWarning(Reply):
    """A reason not to trust the reply."""

    code: Annotated[
        outputs.WarningCode,
        says(
            "fewer values were inside their 0.9 interval than should be, or more; many are outliers to this filter; "
            "a filter that learns from its series alone had few rows of it; forecasts further ahead than a network was "
            "trained at are told as of the furthest that it was; the rate asks for an alarm more often than not; or "
            "the request names a retired model, and another one answered"
        ),
    ]
    horizon: Annotated[
        float | None,
        says("of the forecasts that it is about, or of those on the way to the rows of `ahead`; null is one step"),
    ]
    components: Annotated[
        list[int] | None, says("of the observations that it is about, from 0; null is all of them together")
    ]
    message: Annotated[str, says("what was found, and what to try")]


@dataclass
class Done(Reply):
    """What every last line and frame begins with."""

    done: Annotated[Literal[True], says("marks the last one")]


@dataclass
class FilterSummary(Reply):
    """The sequence as a whole."""

    model: Annotated[str, says("that answered")]
    passes: Annotated[int, says("reweighting passes K of each observation")]
    smoothed: Annotated[
        Annotated[Sequence[outputs.SmoothedStep] | Blocks | None, _Json(list[SmoothedStep] | None)],
        says("the states given later observations, one a step; null without `smooth`"),
    ]
    log_likelihood: Annotated[float, says("of all observations taken, under the model")]
    calibration: Annotated[
        Annotated[outputs.ForecastChecks, _Json(ForecastChecks)], says("whether its forecasts came true")
    ]
    warnings: Annotated[
        Annotated[list[outputs.FilterWarning], _Json(list[FilterWarning])],
        says("why not to trust it; empty where nothing speaks against it"),
    ]
    seed: Annotated[int, says("of the samples: with it the same request draws the same ones")]
    timings: Annotated[FilterTimings, says("where the time went")]
    finish_reason: Annotated[
        FilterFinishReason,
        says(
            "`deadline`: `deadline_ms` passed before the end. The steps are those of the first observations, all else "
            "is of these, `state` goes on after them, and what is made from the end, `smoothed` and the samples of "
            "`smooth`, is left out. `cancelled`: the server went down before the "
            "end of a streamed series; `state`, asked for or not, goes on elsewhere"
        ),
    ]
    state: State


@dataclass
class FilterReply(FilterSummary):
    """One step per observation, and the sequence as a whole."""

    # Of a reply that is never there as a whole: the steps are sent first, as they come.

    steps: Annotated[list[FilterStepReply], says("one for each observation")]


@dataclass
class ColumnsSummary(FilterSummary):
    """What is told of a whole sequence beside its columns."""

    ahead: Annotated[
        Annotated[dict[str, np.ndarray] | None, _Json(dict[str, list[float]] | None)],
        says(
            "the rows that come next, in columns: t; for each column x of the request mean.x, std.x, lower.L.x and "
            "upper.L.x for each level L, forecasts of measurements; null where `ahead` is 0"
        ),
    ]


@dataclass
class FilterColumns(ColumnsSummary):
    """The answer to `values`: columns in the place of steps, all of the same length."""

    columns: Annotated[
        Annotated[dict[str, np.ndarray], _Json(dict[str, list[float | None]])],
        says(
            "by name: index, t, precision, confidence, weight, nis, anomaly, alarm (1 or 0); for each column x of "
            "the request mean.x, std.x, innovation.x, lower.L.x and upper.L.x for each level L, smoothed.mean.x and "
            "smoothed.std.x; for each horizon h forecast.h.mean.x, forecast.h.std.x, forecast.h.lower.L.x "
            "and forecast.h.upper.L.x. Where x has shown nothing yet these are null"
        ),
    ]


@dataclass
class FilterDone(FilterSummary, Done):
    """The last line of a stream; the lines before it are steps."""


@dataclass
class MergeReply(Reply):
    """The merged belief, as a step of /filter in which nothing was observed."""

    model: Annotated[str, says("whose states they are")]
    method: Annotated[MergeMethod, says("by which they were merged")]
    weights: Annotated[
        list[float] | None, says("of each state in a covariance intersection: those of the least determinant")
    ]
    index: Annotated[int, says("of the next step: the observations in that state which has the most")]
    t: Annotated[float, says("of the belief; the states were brought forward to it")]
    mean: Annotated[list[float], says("the state, each component in units of the observation")]
    std: Annotated[list[float], says("its calibrated standard deviation")]
    precision: Annotated[float, says("1 / calibrated variance of the state, as of a step")]
    confidence: Annotated[Probability, says("that the next observation falls inside its 0.9 interval")]
    interval: Annotated[
        dict[str, list[Interval]], says("of the state, by level, for each component lower and upper end")
    ]
    forecast: Annotated[
        Annotated[Sequence[outputs.ForecastPoint], _Json(list[ForecastPoint])],
        says("of the observation at each horizon, in the request's order"),
    ]
    seed: Annotated[int, says("of the first state, and so of the merged one")]
    timings: Annotated[FilterTimings, says("where the time went")]
    state: State


@dataclass
class StreamReady(Reply):
    """Answer to the first frame of a live stream."""

    ready: Annotated[Literal[True], says("observations may come")]
    model: Annotated[str, says("that answers")]
    passes: Annotated[int, says("reweighting passes K of each observation")]
    seed: Annotated[int, says("of the samples")]
    observation_size: Annotated[int, says("components of an observation")]
    levels: Annotated[Many[float], says("of the intervals")]
    index: Annotated[int, says("of the first step: the observations that are in the state")]


@dataclass
class StreamDone(Done):
    """The last frame of a live stream that ended well."""

    steps: Annotated[int, says("of this stream, without those in the state that it began with")]
    log_likelihood: Annotated[float, says("of these steps")]
    calibration: Annotated[
        Annotated[outputs.ForecastChecks, _Json(ForecastChecks)], says("whether its forecasts came true")
    ]
    warnings: Annotated[
        Annotated[list[outputs.FilterWarning], _Json(list[FilterWarning])],
        says("why not to trust it; empty where nothing speaks against it"),
    ]
    reason: Annotated[EndReason, says("why the stream ends: the client closed it, it was idle, or the server drains")]
    state: State


# Operation.


@dataclass
class Health(Reply):
    """The process is alive."""

    status: Annotated[Literal["alive"], says("always this")]


@dataclass
class Ready(Reply):
    """Bundles are loaded, agreed with their golden outputs, and the engine makes progress."""

    status: Annotated[Literal["ready"], says("always this")]
    models: Annotated[list[str], says("names of those that are served")]


@dataclass(frozen=True)
class GpuKernels(Reply):
    """Where the kernels came from that a language model launched on a GPU while it was loaded."""

    stored: Annotated[tuple[str, ...], says("compiled at export, taken from bundles; no compiler was called for them")]
    compiled: Annotated[tuple[str, ...], says("compiled here, by Triton")]
    reason: Annotated[
        str | None, says("why those of the bundle were not taken, or not all: none there, another GPU, driver, version")
    ]


@dataclass(frozen=True)
class LongSeries(Reply):
    """Where a filter computes long pieces of a series, on a server with a GPU; all else it does on the CPU."""

    device: Annotated[str, says("cuda or cpu")]
    tokens: Annotated[
        int | None, says("rows times columns of a piece, from which on it goes to the GPU; null on a CPU")
    ]
    reason: Annotated[str | None, says("why they stay on the CPU; null on a GPU")]


@dataclass(frozen=True)
class ModelInfo(Reply):
    """One served bundle."""

    name: Annotated[str, says("what requests call it")]
    kind: Annotated[Kind, says("lm makes text, filter estimates states, series does so of any numbers")]
    digest: Annotated[str, says("sha256 of the bundle's manifest")]
    golden_values: Annotated[int, says("golden output values that the bundle reproduced at load")]
    runtime: Annotated[str, says("what computes it: onnx, compiled or torch")]
    modes: Annotated[tuple[Mode, ...], says("what `decode` of a text, or `mode` of a filter, can be, the default last")]
    config: Annotated[Mapping[str, Any], says("of the model, as it was trained")]
    metrics: Annotated[Mapping[str, Any], says("measured on held-out data when it was exported")]
    calibration: Annotated[Mapping[str, Any], says("how its errors were made to come true, and on how much data")]
    ece_rows: Annotated[
        int,
        says(
            "held-out tokens in the bundle with which the calibration error that it states was checked at load; 0: it "
            "has none, as bundles of earlier versions and filters, and what it states was not checked"
        ),
    ] = 0
    kernels: Annotated[
        Annotated[outputs.GpuKernels | None, _Json(GpuKernels | None)],
        says("that it launches on a GPU; null on a CPU"),
    ] = None
    long_series: Annotated[
        Annotated[outputs.LongSeries | None, _Json(LongSeries | None)],
        says("where a filter computes them; null on a server without a GPU, and of language models"),
    ] = None


@dataclass
class Info(Reply):
    """What runs here."""

    name: Annotated[str, says("of this software")]
    version: Annotated[str, says("of the server")]
    bundle_version: Annotated[
        str, says("short id of all bundles together, equal in every process of a server; it changes with a reload")
    ]
    device: Annotated[str, says("that language models run on; where long series go, a model's `long_series` says")]
    versions: Annotated[dict[str, str], says("of what it runs on, by name")]
    models: Annotated[Many[ModelInfo], says("that are served")]
    limits: Annotated[dict[str, int | float], says("of a request, by the names of their settings")]
