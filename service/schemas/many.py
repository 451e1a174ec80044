"""Replies to `series` of /filter. Each series has the same reply as in a request of its own."""

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
    failed: Annotated[int, says("number of series with an error")]
    observations: Annotated[int, says("number of processed observations of all series")]
    timings: Annotated[FilterTimings, says("durations of the whole request")]


@dataclass
class FilterManyReply(ManySummary):
    """Reply to `series`, with the reply or the error of each."""

    series: Annotated[
        dict[str, FilterReply | FilterColumns | ErrorReply],
        says("steps, columns or an error by name of the series, in the order of completion"),
    ]


@dataclass
class SeriesSteps(FilterReply):
    """A line of a stream of several series, for a series with `observations`."""

    series: Name


@dataclass
class SeriesColumns(FilterColumns):
    """A line of a stream of several series, for a series with `values`."""

    series: Name


@dataclass
class SeriesError(Reply):
    """A line of a stream of several series, for a series with an error. The other series continue."""

    series: Name
    error: Annotated[ErrorBody, says("error, with the field that caused it")]


@dataclass
class FilterManyDone(ManySummary, Done):
    """The last line of a stream of several series."""
