"""Parts of replies that describe alarms and incidents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rfa.runtime import outputs
from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.reply_types import Json, Probability

AlarmProbability = Annotated[Probability, says("Tail probability of the observation under this rule.")]


@dataclass
class RaisedAlarm(Reply):
    """Details of an alarm."""

    rule: Annotated[
        outputs.RaisedBy,
        says(
            "Rule that raised the alarm. `value`: the value is unusual. `stretch`: the level or spread has changed. "
            "`standstill`: the value no longer changes. `gap`: there were no values for a long time. `range`: the "
            "value is outside `alarm.range`."
        ),
    ]
    incident: Annotated[int, says("Index of the first alarm of the incident that this alarm belongs to.")]
    component: Annotated[
        int,
        says(
            "Component that raised the alarm, counted from 0. If there are several, it is the one with the smallest "
            "tail probability."
        ),
    ]
    probability: AlarmProbability


@dataclass
class Incident(Reply):
    """Group of alarms. An incident begins with an alarm, and ends after ten consecutive ordinary observations."""

    index: Annotated[int, says("Index of the first alarm of the incident.")]
    begin: Annotated[
        float,
        says(
            "Time of the first alarm of the incident. If this is the alarm of a gap, it is the time of the last value "
            "before the gap."
        ),
    ]
    end: Annotated[float, says("Time of the last alarm of the incident.")]
    alarms: Annotated[int, says("Number of alarms in the incident.")]
    rules: Annotated[
        list[outputs.RaisedBy],
        says("Rules that raised the alarms; the first one raised the most unusual alarm of the incident."),
    ]
    component: Annotated[int, says("Component of the most unusual alarm, counted from 0.")]
    t: Annotated[float, says("Time of the most unusual alarm, which is the one with the smallest tail probability.")]
    value: Annotated[float, says("Observed value at the time of the most unusual alarm.")]
    expected: Annotated[
        float | None, says("Forecast of the value at the most unusual alarm; null for standstills and gaps.")
    ]
    probability: AlarmProbability
    direction: Annotated[
        Literal["up", "down"] | None,
        says("Direction of the deviation from the forecast; null for standstills and gaps."),
    ]


Incidents = Annotated[
    Annotated[list[outputs.Incident], Json(list[Incident])],
    says("List of incidents, which are groups of alarms; at most the first 1,000, and empty without `alarm`."),
]
OmittedIncidents = Annotated[int, says("Number of further incidents that are not listed.")]
