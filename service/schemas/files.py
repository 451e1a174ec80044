"""Request and reply of /read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rfa.service.schemas.base import Reply, Request, says

CellText = Annotated[str, Field(min_length=1, max_length=256)]


class ReadRequest(Request):
    """Options for reading a file. They have the same meaning as the options of `rfa filter`."""

    time: CellText | None = Field(
        default=None, description="Name of the time column; if null, the column is detected from its name or values."
    )
    columns: list[CellText] = Field(
        default_factory=list,
        max_length=64,
        description="Names of the columns with values; an empty list selects all numeric columns.",
    )
    by: list[CellText] = Field(
        default_factory=list,
        max_length=8,
        description="Names of the columns that identify the series; if empty, such columns are found automatically.",
    )
    sheet: CellText | None = Field(
        default=None, description="Name of the sheet in a workbook; null selects the first sheet."
    )
    zone: CellText = Field(default="UTC", description="Time zone of times without a time zone.")
    time_format: CellText | None = Field(
        default=None, description="Format of the times for strptime; if null, it is detected."
    )
    missing: list[CellText] = Field(
        default_factory=list,
        max_length=16,
        description=(
            'Words and numbers that mark missing values; "none" disables the automatic search for such numbers.'
        ),
    )
    every: CellText | None = Field(
        default=None, description="Time step such as 5min, to which rows are resampled by their mean."
    )


@dataclass
class ReadSeries(Reply):
    """One series of a file."""

    clock: Annotated[str | None, says("Name of the time column; null if the rows are numbered.")]
    is_dated: Annotated[bool, says("Whether the times are seconds since 1970.")]
    times: Annotated[list[float], says("Time of each row, in ascending order.")]
    values: Annotated[
        dict[str, list[float | None]], says("Values of each column, by name; null marks a missing value.")
    ]
    notes: Annotated[list[str], says("Notes on how the file was read, for example on skipped rows.")]


@dataclass
class ReadReply(Reply):
    """The series of a file."""

    series: Annotated[
        dict[str, ReadSeries],
        says("Series by name, in the order of their first rows. If the file has no key columns, the name is empty."),
    ]
