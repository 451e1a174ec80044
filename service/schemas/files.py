"""Request and reply of /read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rfa.service.schemas.base import Reply, Request, says

CellText = Annotated[str, Field(min_length=1, max_length=256)]


class ReadRequest(Request):
    """Options for reading a file. They match the options of `rfa filter`."""

    time: CellText | None = Field(default=None, description="time column; null finds it by its name or content")
    columns: list[CellText] = Field(
        default_factory=list, max_length=64, description="value columns; an empty list selects all numeric columns"
    )
    by: list[CellText] = Field(
        default_factory=list,
        max_length=8,
        description="columns that label series; an empty list finds them automatically",
    )
    sheet: CellText | None = Field(default=None, description="sheet of a workbook; null selects the first")
    zone: CellText = Field(default="UTC", description="time zone of times that do not state one")
    time_format: CellText | None = Field(default=None, description="strptime format of the times; null detects it")
    missing: list[CellText] = Field(
        default_factory=list,
        max_length=16,
        description='words and numbers that mark missing values; "none" disables the search for such numbers',
    )
    every: CellText | None = Field(
        default=None, description="regular step, such as 5min, to which the rows are resampled by their mean"
    )


@dataclass
class ReadSeries(Reply):
    """One series of a file."""

    clock: Annotated[str | None, says("time column; null if the rows are numbered")]
    is_dated: Annotated[bool, says("whether times are seconds since 1970")]
    times: Annotated[list[float], says("times of the rows, in increasing order")]
    values: Annotated[dict[str, list[float | None]], says("columns by name; null marks a missing value")]
    notes: Annotated[list[str], says("what was decided or omitted while reading")]


@dataclass
class ReadReply(Reply):
    """The series of a file by name. The name of a single series is empty."""

    series: Annotated[dict[str, ReadSeries], says("series in the order of their first rows")]
