"""Replies of /filter, /filter/stream and /state/merge.

The runtime's results (`rfa.runtime.outputs`) are sent as they are; the replies of the same names describe them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rfa.runtime import outputs
from rfa.runtime.blocks import Blocks
from rfa.runtime.choices import MergeMethod
from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.reply_types import Json, Many, Probability, Rows, State

EndReason = Literal["close", "idle", "drain", "refused"]
FilterFinishReason = Literal["complete", "deadline", "cancelled", "refused"]
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]
Coverage = Annotated[
    dict[str, float | None],
    Field(description="share of the scored components inside the interval, by level; null if none was scored"),
]


@dataclass
class ForecastPoint(Reply):
    """Forecast of an observation."""

    t: Annotated[float, says("time of the observation")]
    mean: Annotated[list[float], says("mean of the forecast distribution of each component")]
    median: Annotated[list[float], says("its median, which differs from the mean if the distribution is skewed")]
    std: Annotated[list[float], says("calibrated standard deviation of each component, with measurement noise")]
    interval: Annotated[dict[str, list[Interval]], says("lower and upper end of each component, by level")]


Index = Annotated[int, says("position in the stream, from 0")]
ObservationTime = Annotated[float, says("time of the observation")]
Mean = Annotated[list[float], says("the state, in units of the observation")]
Std = Annotated[list[float], says("calibrated standard deviation of the state")]
Confidence = Annotated[Probability, says("probability that the next observation is inside its 0.9 interval")]
Intervals = Annotated[
    dict[str, list[Interval]], says("intervals of the state: lower and upper end of each component, by level")
]
Forecasts = Annotated[
    Annotated[Sequence[outputs.ForecastPoint], Json(list[ForecastPoint])],
    says("forecast of the observation at each horizon, in the request's order"),
]


AlarmProbability = Annotated[Probability, says("tail probability of the observation by the rule")]


@dataclass
class RaisedAlarm(Reply):
    """How an observation became an alarm."""

    rule: Annotated[
        outputs.RaisedBy,
        says(
            "an unusual value, a stretch of changed level or spread, a standstill, a gap without values, or a value "
            "outside `range`"
        ),
    ]
    incident: Annotated[int, says("index of the first alarm of its incident")]
    component: Annotated[int, says("the component, from 0; of several the rarest")]
    probability: AlarmProbability


@dataclass
class Incident(Reply):
    """Alarms that belong together: it ends after ten ordinary observations in a row."""

    index: Annotated[int, says("index of its first alarm")]
    begin: Annotated[float, says("time of its first alarm")]
    end: Annotated[float, says("time of its last alarm")]
    alarms: Annotated[int, says("number of its alarms")]
    rules: Annotated[list[outputs.RaisedBy], says("rules that raised them, that of the peak first")]
    component: Annotated[int, says("component of its peak, the rarest alarm")]
    t: Annotated[float, says("time of the peak")]
    value: Annotated[float, says("value at the peak")]
    expected: Annotated[float | None, says("forecast of the value; null for standstills and gaps")]
    probability: AlarmProbability
    direction: Annotated[Literal["up", "down"] | None, says("of the deviation; null for standstills and gaps")]


Incidents = Annotated[
    Annotated[list[outputs.Incident], Json(list[Incident])],
    says("alarms that belong together, at most the first 1,000; empty without `alarm`"),
]
OmittedIncidents = Annotated[int, says("further incidents, which are not listed")]


@dataclass
class FilterStepReply(Reply):
    """The state after one observation, in its units. With `fields`, only those and `index` and `t`."""

    always = ("index", "t")
    index: Index
    t: ObservationTime
    mean: Mean
    std: Std
    precision: Annotated[float, says("1 / calibrated variance of the state; uncalibrated: 1 / mean of std²")]
    confidence: Confidence
    weight: Annotated[float | None, says("share of the observation that the robust update used, (0, 1]")]
    innovation: Annotated[list[float | None] | None, says("observation minus forecast; null if missing")]
    nis: Annotated[float | None, says("normalised innovation squared, about the number of components")]
    anomaly: Annotated[
        float | None, says("1 - tail probability of the observation: above 0.999 for one in 1,000", ge=0, le=1)
    ]
    alarm: Annotated[bool | None, says("whether it is an alarm; null without `alarm` or an observation")]
    raised: Annotated[
        Annotated[outputs.RaisedAlarm | None, Json(RaisedAlarm | None)],
        says("how it became an alarm; null if it is none"),
    ]
    interval: Intervals
    forecast: Forecasts
    # Not lists: freeing those of 256 steps with 128 samples took 5 ms.
    samples: Annotated[Rows, says("[samples, components]; with `smooth` the k-th samples of all steps are one path")]
    weights: Annotated[
        dict[str, list[list[float]]] | None,
        says(
            "weights of the models that `default` mixes, by their names: of each horizon and component; null for other "
            "models. Only if `fields` names it"
        ),
    ] = None


@dataclass
class LateStep(FilterStepReply):
    """The step of a late row of a stream with `late`: its `index` and numbers are those in the order of time."""

    late: Annotated[Literal[True], says("the row was late")] = True
    recomputed: Annotated[
        int, says("later rows that were filtered again; steps that were sent for them are outdated")
    ] = 0


@dataclass
class StreamStepReply(FilterStepReply):
    """A step of a live stream with its state, every `state_every` steps; other steps have no such fields."""

    state: Annotated[str | None, says("the state after this step; null in other steps")] = None
    warnings: Annotated[
        Annotated[list[outputs.FilterWarning] | None, Json(list[FilterWarning] | None)],
        says("warnings about the stream so far, with each state; null in other steps"),
    ] = None


@dataclass(frozen=True)
class SmoothedStep(Reply):
    """The state given all observations."""

    index: Index
    t: ObservationTime
    mean: Mean
    std: Std


@dataclass(frozen=True)
class FilterTimings(Reply):
    """Durations in milliseconds."""

    queue_ms: Annotated[float, says("time in the queue")]
    compute_ms: Annotated[float, says("from start to end, including pauses for other requests")]


@dataclass(frozen=True)
class AlarmChecks(Reply):
    """The alarms of this request or stream, compared with the requested rate."""

    observations: Annotated[int, says("observations that could be alarms")]
    raised: Annotated[int, says("alarms")]
    expected: Annotated[float, says("alarms by the rate, without the effect of direction, min_deviation and quiet")]
    rate: Annotated[float, says("share of the observations that were alarms")]
    bound: Annotated[tuple[float, float], says("95 % interval of the rate for independent alarms; wider for clusters")]


@dataclass(frozen=True)
class LeadChecks(Reply):
    """Coverage of the forecasts at one horizon."""

    horizon: Annotated[float, says("as requested, in units of the times")]
    steps: Annotated[float | None, says("horizon in typical lags of this stream; null if none was scored")]
    scored: Annotated[int, says("components of observations at the time of a forecast; at most 32 are pending")]
    coverage: Coverage


@dataclass(frozen=True)
class ComponentChecks(Reply):
    """Coverage of the one-step forecasts of one component."""

    scored: Annotated[int, says("observations with a forecast")]
    coverage: Coverage


@dataclass(frozen=True)
class ForecastChecks(Reply):
    """Coverage and calibration of the one-step forecasts of this request or stream; the first observation has none."""

    scored: Annotated[int, says("components of observations with a forecast")]
    coverage: Coverage
    bound: Annotated[float | None, says("conformal guarantee: largest difference of coverage and level, for any data")]
    gamma: Annotated[float, says("step size of the adaptation; the bound is about components / (gamma scored)")]
    weighted_nis: Annotated[float | None, says("mean of weight × nis / components; about 1 if the model is correct")]
    pit: Annotated[list[int], says("probability integral transform in ten bins", min_length=10, max_length=10)]
    weighted_nis_bins: Annotated[
        list[int],
        says("histogram of weight × nis / components, edges 0.1, 0.25, 0.5, 1, 2, 4, 8", min_length=8, max_length=8),
    ]
    alarms: Annotated[AlarmChecks | None, says("null unless requested")]
    outliers: Annotated[int, says("observations whose nis has probability below 0.001 if the model is correct")]
    leads: Annotated[list[LeadChecks], says("checks of each horizon, in the request's order")]
    components: Annotated[list[ComponentChecks], says("checks of each component of the observations")]


Calibration = Annotated[
    Annotated[outputs.ForecastChecks, Json(ForecastChecks)], says("coverage and calibration of the forecasts")
]


@dataclass(frozen=True)
class FilterWarning(Reply):
    """A reason not to trust the reply."""

    code: Annotated[outputs.WarningCode, says("kind of the warning; see `message`")]
    horizon: Annotated[float | None, says("horizon of these forecasts, or of those up to `ahead`; null: one step")]
    components: Annotated[list[int] | None, says("components of the observations, from 0; null: all together")]
    message: Annotated[str, says("description and a remedy")]


Warnings = Annotated[
    Annotated[list[outputs.FilterWarning], Json(list[FilterWarning])], says("warnings about the result; usually empty")
]


@dataclass
class Done(Reply):
    """Base of the last line or frame."""

    done: Annotated[Literal[True], says("marks the last line or frame")]


Refused = Annotated[int, says("rows that were refused, each with an error of its own; the state has none of them")]
Model = Annotated[str, says("the model that answered")]
Passes = Annotated[int, says("reweighting passes K of each observation")]


@dataclass
class FilterSummary(Reply):
    """Results for a whole sequence."""

    model: Model
    passes: Passes
    smoothed: Annotated[
        Annotated[Sequence[outputs.SmoothedStep] | Blocks | None, Json(list[SmoothedStep] | None)],
        says("the states given later observations, one per step; null without `smooth`"),
    ]
    log_likelihood: Annotated[float, says("log likelihood of all processed observations")]
    calibration: Calibration
    incidents: Incidents
    omitted_incidents: OmittedIncidents
    warnings: Warnings
    seed: Annotated[int, says("repeats the samples for the same request")]
    timings: Annotated[FilterTimings, says("durations")]
    finish_reason: Annotated[
        FilterFinishReason,
        says(
            "`deadline`: the reply covers the observations up to `deadline_ms`, `state` continues after them, and "
            "`smoothed` is omitted; `cancelled`: the server stopped, and `state` continues the series; `refused`: 100 "
            "rows of a stream in a row were refused"
        ),
    ]
    state: State


@dataclass
class FilterReply(FilterSummary):
    """One step per observation, and results for the whole sequence."""

    steps: Annotated[list[FilterStepReply], says("one per observation")]


@dataclass
class ColumnsSummary(FilterSummary):
    """Results for a whole sequence in columns."""

    ahead: Annotated[
        Annotated[dict[str, np.ndarray] | None, Json(dict[str, list[float]] | None)],
        says(
            "forecast of the next rows: t, and mean.x, std.x, lower.L.x, upper.L.x for each column x and level L; with "
            "`fields` weights also weight.e.x for each expert e"
        ),
    ]


@dataclass
class FilterColumns(ColumnsSummary):
    """Reply to `values`: columns of equal length instead of steps."""

    columns: Annotated[
        Annotated[dict[str, np.ndarray], Json(dict[str, list[float | None]])],
        says(
            "index, t, precision, confidence, weight, nis, anomaly, alarm (1 or 0); for each column x mean.x, std.x, "
            "innovation.x, smoothed.mean.x, smoothed.std.x, and lower.L.x, upper.L.x for each level L; for each "
            "horizon h forecast.h.mean.x, .std.x, .lower.L.x and .upper.L.x, and with `fields` weights for each "
            "expert e .weight.e.x. Null until x has a value"
        ),
    ]


@dataclass
class FilterDone(FilterSummary, Done):
    """The last line of a stream; the lines before it are steps, and errors of refused rows."""

    refused: Refused


@dataclass
class MergeReply(Reply):
    """The merged state, like a step of /filter without an observation."""

    model: Annotated[str, says("model of the states")]
    method: Annotated[MergeMethod, says("the merge method")]
    weights: Annotated[list[float] | None, says("weight of each state in a covariance intersection")]
    index: Annotated[int, says("index of the next step: the most observations in one of the states")]
    t: Annotated[float, says("time of the merged state, to which all states were predicted")]
    mean: Mean
    std: Std
    precision: Annotated[float, says("1 / calibrated variance of the state, as in a step")]
    confidence: Confidence
    interval: Intervals
    forecast: Forecasts
    seed: Annotated[int, says("seed of the first state, used for the merged one")]
    timings: Annotated[FilterTimings, says("durations")]
    state: State


@dataclass
class StreamReady(Reply):
    """Reply to the first frame of a live stream."""

    ready: Annotated[Literal[True], says("observations may be sent")]
    model: Model
    passes: Passes
    seed: Annotated[int, says("seed of the samples")]
    observation_size: Annotated[int, says("components of an observation")]
    levels: Annotated[Many[float], says("levels of the intervals")]
    index: Annotated[int, says("index of the first step: the observations in the state")]


@dataclass
class StreamDone(Done):
    """The last frame of a live stream."""

    steps: Annotated[int, says("steps of this stream, without those in its initial state")]
    log_likelihood: Annotated[float, says("log likelihood of these steps")]
    calibration: Calibration
    warnings: Warnings
    reason: Annotated[
        EndReason,
        says(
            "the client closed the stream, it was idle, the server is shutting down, or 100 rows in a row were refused"
        ),
    ]
    state: State
    refused: Refused
