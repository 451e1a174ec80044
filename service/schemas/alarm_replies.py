"""Replies about alarms and incidents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rfa.runtime import outputs
from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.reply_types import Json, Probability

AlarmProbability = Annotated[Probability, says("tail probability of the observation under this rule")]


@dataclass
class RaisedAlarm(Reply):
    """Details of an alarm."""

    rule: Annotated[
        outputs.RaisedBy,
        says(
            "reason for the alarm: an unusual value, a changed level or spread, a value that no longer changes, a "
            "gap without values, or a value outside `range`"
        ),
    ]
    incident: Annotated[int, says("index of the first alarm of the incident that this alarm belongs to")]
    component: Annotated[
        int,
        says(
            "component that raised the alarm, counted from 0; the one with the smallest tail probability if there are "
            "several"
        ),
    ]
    probability: AlarmProbability


@dataclass
class Incident(Reply):
    """Group of alarms that belong together. It ends after ten consecutive ordinary observations."""

    index: Annotated[int, says("index of the first alarm of the incident")]
    begin: Annotated[float, says("time of the first alarm of the incident")]
    end: Annotated[float, says("time of the last alarm of the incident")]
    alarms: Annotated[int, says("number of alarms in the incident")]
    rules: Annotated[
        list[outputs.RaisedBy], says("rules that raised the alarms; the first is the rule of the most unusual alarm")
    ]
    component: Annotated[int, says("component of the most unusual alarm")]
    t: Annotated[float, says("time of the most unusual alarm, which has the smallest tail probability")]
    value: Annotated[float, says("observed value at the time of the most unusual alarm")]
    expected: Annotated[float | None, says("forecast of that value; null for standstills and gaps")]
    probability: AlarmProbability
    direction: Annotated[
        Literal["up", "down"] | None,
        says("direction of the deviation from the forecast; null for standstills and gaps"),
    ]


Incidents = Annotated[
    Annotated[list[outputs.Incident], Json(list[Incident])],
    says("groups of alarms that belong together, at most the first 1,000; empty without `alarm`"),
]
OmittedIncidents = Annotated[int, says("number of further incidents, which are not listed")]
