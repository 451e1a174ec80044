"""Replies of /filter to requests with several series. The reply for each series is identical to that of a request with
this series alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rfa.service.errors import ErrorBody, ErrorReply
from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.filter_replies import Done, FilterColumns, FilterReply, FilterTimings

Name = Annotated[str, says("Name of the series, as in the request.")]


@dataclass
class ManySummary(Reply):
    """Results for all series together."""

    model: Annotated[str, says("Name of the model that computed the results.")]
    count: Annotated[int, says("Number of series in the request.")]
    failed: Annotated[int, says("Number of series that failed with an error.")]
    observations: Annotated[int, says("Number of processed observations in all series together.")]
    timings: Annotated[FilterTimings, says("Durations of the phases of the whole request.")]


@dataclass
class FilterManyReply(ManySummary):
    """Reply to a request with several series. It contains the reply or the error for each series."""

    series: Annotated[
        dict[str, FilterReply | FilterColumns | ErrorReply],
        says(
            "Replies by the name of the series: steps, columns or an error, in the order in which they were completed."
        ),
    ]


@dataclass
class SeriesSteps(FilterReply):
    """Line of a streamed reply to several series, for a series with `observations`."""

    series: Name


@dataclass
class SeriesColumns(FilterColumns):
    """Line of a streamed reply to several series, for a series with `values`."""

    series: Name


@dataclass
class SeriesError(Reply):
    """Line of a streamed reply to several series, for a series that failed. The other series are not affected."""

    series: Name
    error: Annotated[ErrorBody, says("Description of the error and of its cause.")]


@dataclass
class FilterManyDone(ManySummary, Done):
    """Last line of a streamed reply to several series."""
