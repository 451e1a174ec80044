"""Results of the runtime: plain dataclasses, which orjson encodes as they are.

`rfa.service.schemas.filter_replies` and `server_replies` describe the fields. Thousands of steps are made each second,
so they are neither frozen, which costs more than the fields, nor have slots, which orjson encodes half as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

WarningCode = Literal[
    "low_coverage", "high_coverage", "many_outliers", "few_rows", "far_ahead", "many_alarms", "retired_model"
]
# The rule of an alarm; "range" is a value beyond the limits.
RaisedBy = Literal["value", "stretch", "standstill", "gap", "range"]
Intervals = dict[str, list[list[float]]]  # by level: lower and upper end of each component


@dataclass
class ForecastPoint:
    """Forecast of an observation."""

    t: float
    mean: list[float]
    median: list[float]
    std: list[float]
    interval: Intervals


@dataclass
class RaisedAlarm:
    """How an observation became an alarm.

    Attributes:
        incident: the position of the first alarm of its incident.
        component: the one that raised it, of several the rarest.
        probability: tail probability of the observation by the rule.
    """

    rule: RaisedBy
    incident: int
    component: int
    probability: float


@dataclass
class Incident:
    """Alarms that belong together.

    Attributes:
        index: position of its first alarm.
        begin, end: times of its first and last alarm.
        alarms: their number.
        rules: by which they were raised, that of the peak first.
        t, component, value, expected, probability, direction: of its peak, the rarest alarm; expected and direction
            are None for standstills and gaps.
    """

    index: int
    begin: float
    end: float
    alarms: int
    rules: list[RaisedBy]
    component: int
    t: float
    value: float
    expected: float | None
    probability: float
    direction: Literal["up", "down"] | None


@dataclass
class FilterStep:
    """The state in observation units after one observation."""

    index: int
    t: float
    mean: list[float]
    std: list[float]
    precision: float
    confidence: float
    weight: float | None
    innovation: list[float | None] | None
    nis: float | None
    anomaly: float | None
    alarm: bool | None
    raised: RaisedAlarm | None
    interval: Intervals
    forecast: Sequence[ForecastPoint]  # a list, or what is made block by block
    samples: np.ndarray  # [samples, P]


@dataclass
class WeightedStep(FilterStep):
    """A step with the weights of the experts, by their names: of each lead, of each component."""

    weights: dict[str, list[list[float]]] | None


@dataclass
class LateStep(WeightedStep):
    """The step of a late row, as in the stream in the order of time."""

    late: bool
    recomputed: int


@dataclass(frozen=True)
class SmoothedStep:
    """The state at an observation, given later ones."""

    index: int
    t: float
    mean: list[float]
    std: list[float]


@dataclass(frozen=True)
class AlarmChecks:
    """The alarms that were raised, against the requested rate."""

    observations: int
    raised: int
    expected: float
    rate: float
    bound: tuple[float, float]


@dataclass(frozen=True)
class LeadChecks:
    """Coverage of the forecasts of one horizon."""

    horizon: float
    steps: float | None
    scored: int
    coverage: dict[str, float | None]


@dataclass(frozen=True)
class ComponentChecks:
    """Coverage of the one-step forecasts of one component."""

    scored: int
    coverage: dict[str, float | None]


@dataclass(frozen=True)
class ForecastChecks:
    """Coverage and calibration of the one-step forecasts of a stream, and of each horizon."""

    scored: int
    coverage: dict[str, float | None]
    bound: float | None
    gamma: float
    weighted_nis: float | None
    pit: list[int]
    weighted_nis_bins: list[int]
    alarms: AlarmChecks | None
    outliers: int
    leads: list[LeadChecks]
    components: list[ComponentChecks]


@dataclass(frozen=True)
class FilterWarning:
    """A reason not to trust a result."""

    code: WarningCode
    horizon: float | None
    components: list[int] | None
    message: str


@dataclass(frozen=True)
class GpuKernels:
    """Where the kernels came from that a language model launched on a GPU while it was loaded."""

    stored: tuple[str, ...]
    compiled: tuple[str, ...]
    reason: str | None


@dataclass(frozen=True)
class LongSeries:
    """Where a filter computes long pieces of a series, on a machine with a GPU."""

    device: str
    tokens: int | None
    reason: str | None
