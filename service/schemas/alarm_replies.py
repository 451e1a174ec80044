"""Replies about alarms and incidents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rfa.runtime import outputs
from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.reply_types import Json, Probability

AlarmProbability = Annotated[Probability, says("tail probability of the observation under the rule")]


@dataclass
class RaisedAlarm(Reply):
    """Details of an alarm."""

    rule: Annotated[
        outputs.RaisedBy,
        says(
            "what raised the alarm: an unusual value, a changed level or spread, a value that no longer changes, a "
            "gap without values, or a value outside `range`"
        ),
    ]
    incident: Annotated[int, says("index of the first alarm of the same incident")]
    component: Annotated[int, says("component of the alarm, from 0; the rarest if several raised it")]
    probability: AlarmProbability


@dataclass
class Incident(Reply):
    """A group of alarms. It ends after ten ordinary observations in a row."""

    index: Annotated[int, says("index of its first alarm")]
    begin: Annotated[float, says("time of its first alarm")]
    end: Annotated[float, says("time of its last alarm")]
    alarms: Annotated[int, says("number of its alarms")]
    rules: Annotated[list[outputs.RaisedBy], says("rules that raised the alarms, the rule of the peak first")]
    component: Annotated[int, says("component of the peak")]
    t: Annotated[float, says("time of the peak, which is the rarest alarm")]
    value: Annotated[float, says("observed value at the peak")]
    expected: Annotated[float | None, says("forecast of the value; null for standstills and gaps")]
    probability: AlarmProbability
    direction: Annotated[
        Literal["up", "down"] | None, says("direction of the deviation; null for standstills and gaps")
    ]


Incidents = Annotated[
    Annotated[list[outputs.Incident], Json(list[Incident])],
    says("groups of alarms, at most the first 1,000; empty without `alarm`"),
]
OmittedIncidents = Annotated[int, says("number of further incidents that are not listed")]
