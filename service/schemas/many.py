"""Replies to `series` of /filter. The reply for each series is the same as for a request with this series alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rfa.service.errors import ErrorBody, ErrorReply
from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.filter_replies import Done, FilterColumns, FilterReply, FilterTimings

Name = Annotated[str, says("name of the series in the request")]


@dataclass
class ManySummary(Reply):
    """Results for all series together."""

    model: Annotated[str, says("name of the model that computed the results")]
    count: Annotated[int, says("number of series")]
    failed: Annotated[int, says("number of series that failed with an error")]
    observations: Annotated[int, says("number of processed observations in all series")]
    timings: Annotated[FilterTimings, says("durations of the whole request in milliseconds")]


@dataclass
class FilterManyReply(ManySummary):
    """Reply to `series`, which contains the reply or the error of each series."""

    series: Annotated[
        dict[str, FilterReply | FilterColumns | ErrorReply],
        says("results by name of the series: steps, columns or an error. They are listed in the order of completion"),
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
    """A line of a stream of several series, for a series that failed. The other series continue."""

    series: Name
    error: Annotated[ErrorBody, says("description of the error, with the field that caused it")]


@dataclass
class FilterManyDone(ManySummary, Done):
    """The last line of a stream of several series."""
