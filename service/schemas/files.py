"""Request and reply of /read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rfa.service.schemas.base import Reply, Request, says

CellText = Annotated[str, Field(min_length=1, max_length=256)]


class ReadRequest(Request):
    """How to read a file; the options of `rfa filter`."""

    time: CellText | None = Field(default=None, description="time column; null: found by its name or content")
    columns: list[CellText] = Field(
        default_factory=list, max_length=64, description="value columns; none: all numeric columns"
    )
    by: list[CellText] = Field(default_factory=list, max_length=8, description="columns that label series; none: found")
    sheet: CellText | None = Field(default=None, description="sheet of a workbook; null: the first")
    zone: CellText = Field(default="UTC", description="time zone of times without one")
    time_format: CellText | None = Field(default=None, description="format of the times for strptime; null: found")
    missing: list[CellText] = Field(
        default_factory=list,
        max_length=16,
        description='words and numbers for missing values; "none": do not search for such numbers',
    )
    every: CellText | None = Field(default=None, description="resample to a regular step such as 5min, by the mean")


@dataclass
class ReadSeries(Reply):
    """One series of a file."""

    clock: Annotated[str | None, says("time column; null: rows are counted")]
    is_dated: Annotated[bool, says("whether times are seconds since 1970")]
    times: Annotated[list[float], says("times of the rows, sorted")]
    values: Annotated[dict[str, list[float | None]], says("columns by name; null is missing")]
    notes: Annotated[list[str], says("decisions and omissions while reading")]


@dataclass
class ReadReply(Reply):
    """The series of a file by name; a single one has the empty name."""

    series: Annotated[dict[str, ReadSeries], says("in the order of their first rows")]
