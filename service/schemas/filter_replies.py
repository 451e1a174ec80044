"""Replies of /filter, /filter/stream and /state/merge.

The server sends the results of the runtime (`rfa.runtime.outputs`) unchanged. The replies of the same names describe
them.
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
from rfa.service.schemas.alarm_replies import Incidents, OmittedIncidents, RaisedAlarm
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
    mean: Annotated[list[float], says("mean of the forecast of each component")]
    median: Annotated[
        list[float],
        says("median of the forecast of each component; it differs from the mean if the distribution is skewed"),
    ]
    std: Annotated[list[float], says("calibrated standard deviation of each component, including measurement noise")]
    interval: Annotated[dict[str, list[Interval]], says("lower and upper bound for each component, by level")]


Index = Annotated[int, says("position in the stream, from 0")]
ObservationTime = Annotated[float, says("time of the observation")]
Mean = Annotated[list[float], says("mean of the state, in the units of the observation")]
Std = Annotated[list[float], says("calibrated standard deviation of the state")]
Confidence = Annotated[Probability, says("probability that the next observation lies inside its 0.9 interval")]
Intervals = Annotated[
    dict[str, list[Interval]], says("intervals of the state, by level: lower and upper bound for each component")
]
Forecasts = Annotated[
    Annotated[Sequence[outputs.ForecastPoint], Json(list[ForecastPoint])],
    says("forecasts of the observation at each horizon, in the order of the request"),
]


@dataclass
class FilterStepReply(Reply):
    """The state after one observation. With `fields`, only those fields, `index` and `t` are present."""

    always = ("index", "t")
    index: Index
    t: ObservationTime
    mean: Mean
    std: Std
    precision: Annotated[float, says("1 / calibrated variance of the state; without calibration 1 / mean of std²")]
    confidence: Confidence
    weight: Annotated[float | None, says("weight in (0, 1] that the robust update gave the observation")]
    innovation: Annotated[list[float | None] | None, says("observation minus forecast; null if missing")]
    nis: Annotated[float | None, says("normalised innovation squared, about the number of components")]
    anomaly: Annotated[
        float | None, says("1 - tail probability; exceeds 0.999 for one observation in 1,000", ge=0, le=1)
    ]
    alarm: Annotated[bool | None, says("whether this is an alarm; null without `alarm` or an observation")]
    raised: Annotated[
        Annotated[outputs.RaisedAlarm | None, Json(RaisedAlarm | None)],
        says("details of the alarm; null if the observation is not an alarm"),
    ]
    interval: Intervals
    forecast: Forecasts
    # Arrays, not lists: freeing the lists of 256 steps with 128 samples takes 5 ms.
    samples: Annotated[Rows, says("[samples, components]; with `smooth`, the k-th samples of all steps form one path")]
    weights: Annotated[
        dict[str, list[list[float]]] | None,
        says("weights of the experts of `default`, for each horizon and component; null unless in `fields`"),
    ] = None


@dataclass
class LateStep(FilterStepReply):
    """The step of a late row in a stream with `late`. `index` and values are those at its place in time."""

    late: Annotated[Literal[True], says("marks the step of a late row")] = True
    recomputed: Annotated[
        int, says("number of later rows that were filtered again, whose earlier steps are outdated")
    ] = 0


@dataclass
class StreamStepReply(FilterStepReply):
    """A step of a live stream. Every `state_every` steps it also has the state."""

    state: Annotated[str | None, says("state after this step; null in other steps")] = None
    warnings: Annotated[
        Annotated[list[outputs.FilterWarning] | None, Json(list[FilterWarning] | None)],
        says("warnings about the stream so far, together with the state; null in other steps"),
    ] = None


@dataclass(frozen=True)
class SmoothedStep(Reply):
    """The state at one observation, given all observations."""

    index: Index
    t: ObservationTime
    mean: Mean
    std: Std


@dataclass(frozen=True)
class FilterTimings(Reply):
    """Durations in milliseconds."""

    queue_ms: Annotated[float, says("time in the queue")]
    compute_ms: Annotated[float, says("time from start to end, including pauses for other requests")]


@dataclass(frozen=True)
class AlarmChecks(Reply):
    """Comparison of the alarms of this request or stream with the requested rate."""

    observations: Annotated[int, says("observations that could be alarms")]
    raised: Annotated[int, says("alarms")]
    expected: Annotated[float, says("alarms at the requested rate, without direction, min_deviation and quiet")]
    rate: Annotated[float, says("share of the observations that were alarms")]
    bound: Annotated[tuple[float, float], says("95 % interval of the rate for independent alarms")]


@dataclass(frozen=True)
class LeadChecks(Reply):
    """Coverage of the forecasts at one horizon."""

    horizon: Annotated[float, says("horizon as requested, in units of the times")]
    steps: Annotated[float | None, says("horizon in typical time steps of this stream; null if no forecast was scored")]
    scored: Annotated[int, says("observed components with a forecast, of which at most 32 are pending")]
    coverage: Coverage


@dataclass(frozen=True)
class ComponentChecks(Reply):
    """Coverage of the one-step forecasts of one component."""

    scored: Annotated[int, says("number of observations that were compared with a forecast")]
    coverage: Coverage


@dataclass(frozen=True)
class ForecastChecks(Reply):
    """Coverage and calibration of the one-step forecasts of this request or stream."""

    scored: Annotated[int, says("number of observed components that were compared with a forecast")]
    coverage: Coverage
    bound: Annotated[float | None, says("conformal guarantee for any data: largest difference of coverage and level")]
    gamma: Annotated[float, says("step size of the adaptation; the bound is about components / (gamma · scored)")]
    weighted_nis: Annotated[float | None, says("mean of weight × nis / components; about 1 if the model is correct")]
    pit: Annotated[
        list[int],
        says("histogram of the probability integral transform in ten equal bins", min_length=10, max_length=10),
    ]
    weighted_nis_bins: Annotated[
        list[int],
        says(
            "histogram of weight × nis / components with the bin edges 0.1, 0.25, 0.5, 1, 2, 4 and 8",
            min_length=8,
            max_length=8,
        ),
    ]
    alarms: Annotated[AlarmChecks | None, says("null unless requested")]
    outliers: Annotated[
        int, says("number of observations whose nis has a probability below 0.001 if the model is correct")
    ]
    leads: Annotated[list[LeadChecks], says("checks of each horizon, in the order of the request")]
    components: Annotated[list[ComponentChecks], says("checks of each component of the observations")]


Calibration = Annotated[
    Annotated[outputs.ForecastChecks, Json(ForecastChecks)], says("coverage and calibration of the forecasts")
]


@dataclass(frozen=True)
class FilterWarning(Reply):
    """A reason to doubt the reply."""

    code: Annotated[outputs.WarningCode, says("kind of the warning; see `message`")]
    horizon: Annotated[
        float | None,
        says("horizon of the forecasts concerned; with `ahead`, the largest one; null for one-step forecasts"),
    ]
    components: Annotated[list[int] | None, says("components concerned, from 0; null for all of them together")]
    message: Annotated[str, says("description of the problem and a remedy")]


Warnings = Annotated[
    Annotated[list[outputs.FilterWarning], Json(list[FilterWarning])], says("warnings about the result; usually empty")
]


@dataclass
class Done(Reply):
    """Base of the last line or frame."""

    done: Annotated[Literal[True], says("marks the last line or frame")]


Refused = Annotated[
    int, says("number of rejected rows, each answered with its own error; they do not change the state")
]
Model = Annotated[str, says("the model that answered")]
Passes = Annotated[int, says("number K of reweighting passes for each observation")]


@dataclass
class FilterSummary(Reply):
    """Results for a whole sequence."""

    model: Model
    passes: Passes
    smoothed: Annotated[
        Annotated[Sequence[outputs.SmoothedStep] | Blocks | None, Json(list[SmoothedStep] | None)],
        says("states given all observations, one per step; null without `smooth`"),
    ]
    log_likelihood: Annotated[float, says("log likelihood of all processed observations")]
    calibration: Calibration
    incidents: Incidents
    omitted_incidents: OmittedIncidents
    warnings: Warnings
    seed: Annotated[int, says("seed of the samples; the same request with it returns the same samples")]
    timings: Annotated[FilterTimings, says("durations")]
    finish_reason: Annotated[
        FilterFinishReason,
        says(
            "why the reply ended. `deadline`: it covers the observations up to `deadline_ms`, `state` continues "
            "after them, and `smoothed` is omitted. `cancelled`: the server stopped, and `state` continues the "
            "series. `refused`: 100 rows in a row of a stream were rejected"
        ),
    ]
    state: State


@dataclass
class FilterReply(FilterSummary):
    """One step per observation, and the results for the whole sequence."""

    steps: Annotated[list[FilterStepReply], says("one per observation")]


@dataclass
class ColumnsSummary(FilterSummary):
    """Results for a whole sequence with `values`."""

    ahead: Annotated[
        Annotated[dict[str, np.ndarray] | None, Json(dict[str, list[float]] | None)],
        says(
            "forecasts of the next rows: t, and for each column x mean.x, std.x, and lower.L.x and upper.L.x for "
            "each level L; with `fields` weights also weight.e.x for each expert e"
        ),
    ]


@dataclass
class FilterColumns(ColumnsSummary):
    """Reply to a request with `values`. It has columns of equal length instead of steps."""

    columns: Annotated[
        Annotated[dict[str, np.ndarray], Json(dict[str, list[float | None]])],
        says(
            "columns index, t, precision, confidence, weight, nis, anomaly and alarm (1 or 0). For each column x: "
            "mean.x, std.x, innovation.x, smoothed.mean.x, smoothed.std.x, and lower.L.x and upper.L.x for each "
            "level L. For each horizon h: forecast.h.mean.x, .std.x, .lower.L.x and .upper.L.x, and with `fields` "
            "weights .weight.e.x for each expert e. Null before the first value of x"
        ),
    ]


@dataclass
class FilterDone(FilterSummary, Done):
    """The last line of a stream. The lines before it are steps and the errors of rejected rows."""

    refused: Refused


@dataclass
class MergeReply(Reply):
    """The merged state. It has the fields of a step of /filter without an observation."""

    model: Annotated[str, says("model of the states")]
    method: Annotated[MergeMethod, says("method that merged the states")]
    weights: Annotated[list[float] | None, says("weight of each state in covariance intersection")]
    index: Annotated[
        int, says("index of the next step, which is the largest number of observations in one of the states")
    ]
    t: Annotated[float, says("time of the merged state; all states were predicted to it")]
    mean: Mean
    std: Std
    precision: Annotated[float, says("1 / calibrated variance of the state")]
    confidence: Confidence
    interval: Intervals
    forecast: Forecasts
    seed: Annotated[int, says("seed of the merged state, taken from the first state")]
    timings: Annotated[FilterTimings, says("durations")]
    state: State


@dataclass
class StreamReady(Reply):
    """Reply to the first frame of a live stream."""

    ready: Annotated[Literal[True], says("marks that observations may be sent")]
    model: Model
    passes: Passes
    seed: Annotated[int, says("seed of the samples")]
    observation_size: Annotated[int, says("number of components of an observation")]
    levels: Annotated[Many[float], says("levels of the intervals")]
    index: Annotated[int, says("index of the first step, which is the number of observations in the initial state")]


@dataclass
class StreamDone(Done):
    """The last frame of a live stream."""

    steps: Annotated[int, says("number of steps in this stream, without the steps of its initial state")]
    log_likelihood: Annotated[float, says("log likelihood of these steps")]
    calibration: Calibration
    warnings: Warnings
    reason: Annotated[
        EndReason,
        says("why the stream ended: the client closed it, it was idle, a shutdown, or 100 rejected rows in a row"),
    ]
    state: State
    refused: Refused
