"""Replies to `series` of /filter: each series has the same reply as alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rfa.service.errors import ErrorBody, ErrorReply
from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.filter_replies import Done, FilterColumns, FilterReply, FilterTimings

Name = Annotated[str, says("name of the series in the request")]


@dataclass
class ManySummary(Reply):
    """Results for all series."""

    model: Annotated[str, says("the model that answered")]
    count: Annotated[int, says("number of series")]
    failed: Annotated[int, says("series with an error")]
    observations: Annotated[int, says("processed observations of all series")]
    timings: Annotated[FilterTimings, says("durations of the whole request")]


@dataclass
class FilterManyReply(ManySummary):
    """Reply to `series`: the reply of each, or its error."""

    series: Annotated[
        dict[str, FilterReply | FilterColumns | ErrorReply],
        says("by name, in the order in which they were finished: steps, columns or an error"),
    ]


@dataclass
class SeriesSteps(FilterReply):
    """A line of a stream of several series: one with observations."""

    series: Name


@dataclass
class SeriesColumns(FilterColumns):
    """A line of a stream of several series: one with values."""

    series: Name


@dataclass
class SeriesError(Reply):
    """A line of a stream of several series: one with an error; the others continue."""

    series: Name
    error: Annotated[ErrorBody, says("the error, and the field that caused it")]


@dataclass
class FilterManyDone(ManySummary, Done):
    """The last line of a stream of several series."""
