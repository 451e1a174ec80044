"""Replies of /filter, /filter/stream and /state/merge.

The server sends objects of `rfa.runtime.outputs` unchanged. Classes with the same names in this module describe them in
the OpenAPI document.
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
from rfa.service.schemas.reply_types import Json, Many, Probability, QueueTime, Rows, State

EndReason = Literal["close", "idle", "drain", "refused"]
FilterFinishReason = Literal["complete", "deadline", "cancelled", "refused"]
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]
Coverage = Annotated[
    dict[str, float | None],
    Field(
        description=(
            "Fraction of the scored values that were inside their interval, by level; null if no value was scored."
        )
    ),
]


@dataclass
class ForecastPoint(Reply):
    """Forecast of an observation."""

    t: Annotated[float, says("Time for which the forecast is made.")]
    mean: Annotated[list[float], says("Mean of the forecast distribution of each component.")]
    median: Annotated[
        list[float],
        says(
            "Median of the forecast distribution of each component, which differs from the mean if the distribution "
            "is skewed."
        ),
    ]
    std: Annotated[list[float], says("Calibrated standard deviation of each component, including measurement noise.")]
    interval: Annotated[
        dict[str, list[Interval]], says("Lower and upper bound of the interval for each component, by level.")
    ]


Index = Annotated[int, says("Index of the observation in the stream, counted from 0.")]
ObservationTime = Annotated[float, says("Time of the observation.")]
Mean = Annotated[list[float], says("Mean of the state for each component, in the units of the observation.")]
Std = Annotated[list[float], says("Calibrated standard deviation of the state for each component.")]
Confidence = Annotated[Probability, says("Probability that the next observation will be inside its 0.9 interval.")]
Intervals = Annotated[
    dict[str, list[Interval]],
    says("Lower and upper bound of the interval of the state for each component, by level."),
]
Forecasts = Annotated[
    Annotated[Sequence[outputs.ForecastPoint], Json(list[ForecastPoint])],
    says("Forecasts after this observation, one for each horizon in the order of the request."),
]


@dataclass
class FilterStepReply(Reply):
    """Estimate of the state after one observation. If the request sets `fields`, a step contains only these fields,
    `index` and `t`."""

    always = ("index", "t")
    index: Index
    t: ObservationTime
    mean: Mean
    std: Std
    precision: Annotated[float, says("1 / calibrated variance of the state; without calibration, 1 / mean of std².")]
    confidence: Confidence
    weight: Annotated[float | None, says("Robust weight of the observation in the update, in (0, 1].")]
    innovation: Annotated[
        list[float | None] | None, says("Observation minus its one-step forecast; null if the observation is missing.")
    ]
    nis: Annotated[
        float | None, says("Normalised innovation squared. Its expected value is about the number of components.")
    ]
    anomaly: Annotated[
        float | None,
        says(
            "1 - tail probability of the observation. It exceeds 0.999 for about one ordinary observation in 1,000.",
            ge=0,
            le=1,
        ),
    ]
    alarm: Annotated[
        bool | None, says("Whether the observation is an alarm; null without `alarm` or without an observation.")
    ]
    raised: Annotated[
        Annotated[outputs.RaisedAlarm | None, Json(RaisedAlarm | None)],
        says("Details of the alarm; null if the observation is not an alarm."),
    ]
    interval: Intervals
    forecast: Forecasts
    # Arrays, not lists: freeing the lists of 256 steps with 128 samples takes 5 ms.
    samples: Annotated[
        Rows,
        says(
            "Samples of the state, [samples, components]. With `smooth`, the k-th samples of the steps form one path."
        ),
    ]
    weights: Annotated[
        dict[str, list[list[float]]] | None,
        says(
            "Weights of the forecasts that `default` combines, for each horizon and component; null unless requested "
            "with `fields`."
        ),
    ] = None


@dataclass
class LateStep(FilterStepReply):
    """Step for a row that arrived late, in a stream with `late`. It contains the estimates and the index for the time
    of the row."""

    late: Annotated[Literal[True], says("Always true, because the row arrived late.")] = True
    recomputed: Annotated[
        int,
        says("Number of later rows that were filtered again because of this row; their earlier steps are outdated."),
    ] = 0


@dataclass
class StreamStepReply(FilterStepReply):
    """Step of a live stream. One of every `state_every` steps also contains the state."""

    state: Annotated[str | None, says("State after this step; null if the step contains no state.")] = None
    warnings: Annotated[
        Annotated[list[outputs.FilterWarning] | None, Json(list[FilterWarning] | None)],
        says("Warnings about the stream up to this step; null if the step contains no state."),
    ] = None


@dataclass(frozen=True)
class SmoothedStep(Reply):
    """Smoothed state at one observation, estimated from earlier and later observations."""

    index: Index
    t: ObservationTime
    mean: Mean
    std: Std


@dataclass(frozen=True)
class FilterTimings(Reply):
    """Durations of the phases of a request in milliseconds."""

    queue_ms: QueueTime
    compute_ms: Annotated[float, says("Time of the processing in milliseconds, including pauses for other requests.")]


@dataclass(frozen=True)
class AlarmChecks(Reply):
    """Comparison of the alarms of this request or stream with the requested rate."""

    observations: Annotated[int, says("Number of observations that were checked for alarms.")]
    raised: Annotated[int, says("Number of alarms that were raised.")]
    expected: Annotated[
        float, says("Expected number of alarms at the requested rate, without direction, min_deviation and quiet.")
    ]
    rate: Annotated[float, says("Fraction of the checked observations that raised an alarm.")]
    bound: Annotated[tuple[float, float], says("95 % confidence interval of the rate, if alarms are independent.")]


@dataclass(frozen=True)
class LeadChecks(Reply):
    """Coverage of the forecasts at one horizon."""

    horizon: Annotated[float, says("Requested horizon, in units of the times.")]
    steps: Annotated[
        float | None, says("Horizon in typical time steps of this stream; null if no forecast was scored.")
    ]
    scored: Annotated[int, says("Number of values that were compared with a forecast at this horizon.")]
    coverage: Coverage


@dataclass(frozen=True)
class ComponentChecks(Reply):
    """Coverage of the one-step forecasts of one component."""

    scored: Annotated[int, says("Number of values of this component that were compared with a forecast.")]
    coverage: Coverage


@dataclass(frozen=True)
class ForecastChecks(Reply):
    """Coverage and calibration of the one-step forecasts in this request or stream."""

    scored: Annotated[int, says("Number of values that were compared with a one-step forecast, in all components.")]
    coverage: Coverage
    bound: Annotated[
        float | None,
        says(
            "Upper bound on the difference between the coverage and the level. Adaptive conformal prediction "
            "guarantees it for any data. It is null if no value was scored."
        ),
    ]
    gamma: Annotated[
        float, says("Step size of the adaptation of the intervals. `bound` is about components / (gamma · scored).")
    ]
    weighted_nis: Annotated[
        float | None, says("Mean of weight × nis / components, which is about 1 if the model is correct.")
    ]
    pit: Annotated[
        list[int],
        says("Histogram of the probability integral transform in ten equal bins.", min_length=10, max_length=10),
    ]
    weighted_nis_bins: Annotated[
        list[int],
        says(
            "Histogram of weight × nis / components with the bin edges 0.1, 0.25, 0.5, 1, 2, 4 and 8.",
            min_length=8,
            max_length=8,
        ),
    ]
    alarms: Annotated[AlarmChecks | None, says("Comparison of the alarms with their rate; null without `alarm`.")]
    outliers: Annotated[
        int, says("Number of observations whose nis would have a tail probability below 0.001 under a correct model.")
    ]
    leads: Annotated[list[LeadChecks], says("Coverage of the forecasts at each horizon, in the order of the request.")]
    components: Annotated[list[ComponentChecks], says("Coverage of the one-step forecasts of each component.")]


Calibration = Annotated[
    Annotated[outputs.ForecastChecks, Json(ForecastChecks)], says("Measured coverage and calibration of the forecasts.")
]


@dataclass(frozen=True)
class FilterWarning(Reply):
    """Warning about the results, with a suggested action."""

    code: Annotated[outputs.WarningCode, says("Identifier of the warning; `message` describes the warning in words.")]
    horizon: Annotated[
        float | None,
        says(
            "Horizon of the forecasts to which the warning applies; with `ahead`, the largest horizon. A value of null "
            "means one-step forecasts."
        ),
    ]
    components: Annotated[
        list[int] | None,
        says("Components to which the warning applies, counted from 0; null means all components together."),
    ]
    message: Annotated[str, says("Description of the problem, and how to solve it.")]


Warnings = Annotated[
    Annotated[list[outputs.FilterWarning], Json(list[FilterWarning])],
    says("Warnings about the results; usually empty."),
]


@dataclass
class Done(Reply):
    """Base class of the last line or frame of a reply."""

    done: Annotated[Literal[True], says("Always true, which marks the last line or frame of the reply.")]


Refused = Annotated[int, says("Number of rejected rows. For each of them, the reply contains an error.")]
Model = Annotated[str, says("Name of the model that computed the reply.")]
Passes = Annotated[int, says("Number K of reweighting passes for each observation.")]


@dataclass
class FilterSummary(Reply):
    """Results for the whole series."""

    model: Model
    passes: Passes
    smoothed: Annotated[
        Annotated[Sequence[outputs.SmoothedStep] | Blocks | None, Json(list[SmoothedStep] | None)],
        says("Smoothed states, one for each step, estimated from all observations; null without `smooth`."),
    ]
    log_likelihood: Annotated[float, says("Log-likelihood of all observations that were processed.")]
    calibration: Calibration
    incidents: Incidents
    omitted_incidents: OmittedIncidents
    warnings: Warnings
    seed: Annotated[int, says("Random seed of the samples. The same request with this seed returns the same samples.")]
    timings: Annotated[FilterTimings, says("Durations of the phases of the request.")]
    finish_reason: Annotated[
        FilterFinishReason,
        says(
            "Reason why the reply ended. `complete`: all observations were processed. `deadline`: the time limit "
            "`deadline_ms` was reached; the reply contains the observations up to then, `state` continues after them, "
            "and `smoothed` is omitted. `cancelled`: the server shut down, and `state` continues the series. "
            "`refused`: 100 consecutive rows of a stream were rejected."
        ),
    ]
    state: State


@dataclass
class FilterReply(FilterSummary):
    """Reply with one step for each observation, and the results for the whole series."""

    steps: Annotated[list[FilterStepReply], says("Estimates, with one step for each observation.")]


@dataclass
class ColumnsSummary(FilterSummary):
    """Results for the whole series in a reply to `values`."""

    ahead: Annotated[
        Annotated[dict[str, np.ndarray] | None, Json(dict[str, list[float]] | None)],
        says(
            "Forecasts after the last observation, as columns. The columns are t and, for each column x of the data, "
            "mean.x, std.x, and lower.L.x and upper.L.x for each level L. With `weights` in `fields`, there is a "
            "column weight.e.x with the weight of each combined forecast e."
        ),
    ]


@dataclass
class FilterColumns(ColumnsSummary):
    """Reply to a request with `values`. It contains columns instead of steps."""

    columns: Annotated[
        Annotated[dict[str, np.ndarray], Json(dict[str, list[float | None]])],
        says(
            "Estimates for each observation, as columns of equal length. The columns are index, t, precision, "
            "confidence, weight, nis, anomaly and alarm (1 or 0). For each column x of the data, there are mean.x, "
            "std.x, innovation.x, smoothed.mean.x, smoothed.std.x, and lower.L.x and upper.L.x for each level L. For "
            "each horizon h, there are forecast.h.mean.x, .std.x, .lower.L.x and .upper.L.x, and with `weights` in "
            "`fields` .weight.e.x for each combined forecast e. Estimates before the first value of x are null."
        ),
    ]


@dataclass
class FilterDone(FilterSummary, Done):
    """Last line of a streamed reply. The other lines are steps, and errors for rejected rows."""

    refused: Refused


@dataclass
class MergeReply(Reply):
    """Merged state. Its estimates have the same fields as a step of /filter without an observation."""

    model: Annotated[str, says("Name of the model that computed the states.")]
    method: Annotated[MergeMethod, says("Method with which the states were merged.")]
    weights: Annotated[list[float] | None, says("Weight of each state in the covariance intersection.")]
    index: Annotated[int, says("Index of the next step: the largest number of observations in one of the states.")]
    t: Annotated[float, says("Time of the merged state. All states are predicted to this time before they are merged.")]
    mean: Mean
    std: Std
    precision: Annotated[float, says("1 / calibrated variance of the state.")]
    confidence: Confidence
    interval: Intervals
    forecast: Forecasts
    seed: Annotated[int, says("Random seed of the merged state, which is that of the first state.")]
    timings: Annotated[FilterTimings, says("Durations of the phases of the request.")]
    state: State


@dataclass
class StreamReady(Reply):
    """Reply to the first frame of a live stream."""

    ready: Annotated[Literal[True], says("Always true, because the server is ready to receive observations.")]
    model: Model
    passes: Passes
    seed: Annotated[int, says("Random seed of the samples.")]
    observation_size: Annotated[int, says("Number of components of each observation.")]
    levels: Annotated[Many[float], says("Levels of the intervals.")]
    index: Annotated[int, says("Index of the first step, which is the number of observations in the initial state.")]


@dataclass
class StreamDone(Done):
    """Last frame of a live stream."""

    steps: Annotated[int, says("Number of steps in this stream, without the steps before its initial state.")]
    log_likelihood: Annotated[float, says("Log-likelihood of the observations in this stream.")]
    calibration: Calibration
    warnings: Warnings
    reason: Annotated[
        EndReason,
        says(
            "Reason why the stream ended. `close`: the client closed it. `idle`: no observation arrived in time. "
            "`drain`: the server shut down. `refused`: 100 consecutive rows were rejected."
        ),
    ]
    state: State
    refused: Refused
