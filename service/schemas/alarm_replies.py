"""Parts of replies that describe alarms and incidents."""

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
            "rule that raised the alarm. `value`: the value is unusual. `stretch`: the level or spread has changed. "
            "`standstill`: the value no longer changes. `gap`: there were no values for a long time. `range`: the "
            "value is outside `alarm.range`"
        ),
    ]
    incident: Annotated[int, says("index of the first alarm of the incident that this alarm belongs to")]
    component: Annotated[
        int,
        says(
            "component that raised the alarm, counted from 0. If there are several, it is the one with the smallest "
            "tail probability"
        ),
    ]
    probability: AlarmProbability


@dataclass
class Incident(Reply):
    """Group of alarms. An incident begins with an alarm, and ends after ten consecutive ordinary observations."""

    index: Annotated[int, says("index of the first alarm of the incident")]
    begin: Annotated[float, says("time of the first alarm of the incident")]
    end: Annotated[float, says("time of the last alarm of the incident")]
    alarms: Annotated[int, says("number of alarms in the incident")]
    rules: Annotated[
        list[outputs.RaisedBy],
        says("rules that raised the alarms; the first one raised the most unusual alarm of the incident"),
    ]
    component: Annotated[int, says("component of the most unusual alarm, counted from 0")]
    t: Annotated[float, says("time of the most unusual alarm, which is the one with the smallest tail probability")]
    value: Annotated[float, says("observed value at the time of the most unusual alarm")]
    expected: Annotated[
        float | None, says("forecast of the value at the most unusual alarm; null for standstills and gaps")
    ]
    probability: AlarmProbability
    direction: Annotated[
        Literal["up", "down"] | None,
        says("direction of the deviation from the forecast; null for standstills and gaps"),
    ]


Incidents = Annotated[
    Annotated[list[outputs.Incident], Json(list[Incident])],
    says("list of incidents, which are groups of alarms; at most the first 1,000, and empty without `alarm`"),
]
OmittedIncidents = Annotated[int, says("number of further incidents that are not listed")]
