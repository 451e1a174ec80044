"""Results of the runtime as plain dataclasses, which orjson encodes directly.

The fields are described in `rfa.service.schemas.filter_replies` and `server_replies`. Thousands of steps are created
each second. The classes are therefore not frozen, because freezing would take longer than setting the fields. They have
no slots, because orjson encodes objects with slots half as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

WarningCode = Literal[
    "low_coverage", "high_coverage", "many_outliers", "few_rows", "far_ahead", "many_alarms", "retired_model"
]
# Rule that raised an alarm. "range" stands for a value outside the limits.
RaisedBy = Literal["value", "stretch", "standstill", "gap", "range"]
Intervals = dict[str, list[list[float]]]  # Lower and upper end for each component, by level.


@dataclass
class ForecastPoint:
    """A forecast of an observation."""

    t: float
    mean: list[float]
    median: list[float]
    std: list[float]
    interval: Intervals


@dataclass
class RaisedAlarm:
    """Details of an observation that is an alarm.

    Attributes:
        rule: Rule that raised the alarm.
        incident: Position of the first alarm of the incident.
        component: Component that raised the alarm. If there are several, the one with the smallest tail probability.
        probability: Tail probability of the observation under the rule.
    """

    rule: RaisedBy
    incident: int
    component: int
    probability: float


@dataclass
class Incident:
    """A sequence of alarms that ends after ten ordinary observations. Its peak is the alarm with the smallest
    probability.

    Attributes:
        index: Position of the first alarm.
        begin, end: Times of the first and the last alarm. If the first alarm is that of a gap, `begin` is the time of
            the last value before the gap.
        alarms: Number of alarms.
        rules: Rules that raised the alarms. The rule of the peak comes first.
        t, component, value, expected, probability, direction: Values of the peak. `expected` and `direction` are None
            for standstills and gaps.
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
    """State after one observation, in units of the observation."""

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
    forecast: Sequence[ForecastPoint]  # a list, or `Blocks`
    samples: np.ndarray  # [samples, P]


@dataclass
class WeightedStep(FilterStep):
    """A step that also contains the weights of the models in the mixture for each horizon and component, as a mapping
    from names."""

    weights: dict[str, list[list[float]]] | None


@dataclass
class LateStep(WeightedStep):
    """The step of a late row, computed as if all rows had been processed in chronological order."""

    late: bool
    recomputed: int


@dataclass(frozen=True)
class SmoothedStep:
    """Smoothed state at one observation, which also uses later observations."""

    index: int
    t: float
    mean: list[float]
    std: list[float]


@dataclass(frozen=True)
class AlarmChecks:
    """Comparison of the number of raised alarms with the number that is expected at the requested rate."""

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
    """Coverage and calibration of the one-step forecasts of a stream, and coverage at each horizon."""

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
    """A warning about a result. The message says why the result may be wrong."""

    code: WarningCode
    horizon: float | None
    components: list[int] | None
    message: str


@dataclass(frozen=True)
class GpuKernels:
    """Origin of the GPU kernels that a language model used while it was loaded."""

    stored: tuple[str, ...]
    compiled: tuple[str, ...]
    reason: str | None


@dataclass(frozen=True)
class LongSeries:
    """Device that processes long parts of a series.

    Attributes:
        device: "cuda" or "cpu".
        tokens: Smallest number of tokens of a part that is processed on the GPU. None if no GPU is used.
        reason: Reason why no GPU is used. None if one is used.
    """

    device: str
    tokens: int | None
    reason: str | None
