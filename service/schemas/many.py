"""Replies to many series in a request; each series has the reply of `replies.py` that it has alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rfa.service.errors import ErrorBody, ErrorReply
from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.replies import Done, FilterColumns, FilterReply, FilterTimings

Name = Annotated[str, says("of the series, as the request has it")]


@dataclass
class ManySummary(Reply):
    """The request as a whole."""

    model: Annotated[str, says("that answered")]
    count: Annotated[int, says("series of the request")]
    failed: Annotated[int, says("of them, that have an error in the place of a reply")]
    observations: Annotated[int, says("that were taken, of all series together")]
    timings: Annotated[FilterTimings, says("where the time went, of the request as a whole")]


@dataclass
class FilterManyReply(ManySummary):
    """The answer to `series`: the reply of each that it has alone, or its error."""

    # Of a reply that is never there as a whole: series are sent first, as they end.

    series: Annotated[
        dict[str, FilterReply | FilterColumns | ErrorReply],
        says(
            "by name, in the order in which they ended: steps to observations, columns to values, an error to neither"
        ),
    ]


@dataclass
class SeriesSteps(FilterReply):
    """A line of a stream of many series: one that came as observations."""

    series: Name


@dataclass
class SeriesColumns(FilterColumns):
    """A line of a stream of many series: one that came as values."""

    series: Name


@dataclass
class SeriesError(Reply):
    """A line of a stream of many series: one that was refused, or failed. The others go on."""

    series: Name
    error: Annotated[ErrorBody, says("what is wrong with it, and with which of its fields")]


@dataclass
class FilterManyDone(ManySummary, Done):
    """The last line of a stream of many series."""
