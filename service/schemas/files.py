"""What a file is read by, and what was found in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rfa.service.schemas.base import Reply, Request, says

CellText = Annotated[str, Field(min_length=1, max_length=256)]


class ReadRequest(Request):
    """How to read a file: `rfa filter` has the same options."""

    time: CellText | None = Field(
        default=None, description="the column of times; null is the first that is called like one, or holds dates"
    )
    columns: list[CellText] = Field(
        default_factory=list, max_length=64, description="those of values; none is all that hold numbers"
    )
    by: list[CellText] = Field(
        default_factory=list, max_length=8, description="columns that tell the series of a file apart"
    )
    sheet: CellText | None = Field(default=None, description="of a workbook; null is the first")
    zone: CellText = Field(default="UTC", description="where the clock hung whose times name no zone")
    every: CellText | None = Field(
        default=None, description="put each series on a regular clock, such as 5min, by the mean of what each step has"
    )


@dataclass
class ReadSeries(Reply):
    """One series of a file."""

    clock: Annotated[str | None, says("the column of times; null where rows were counted")]
    is_dated: Annotated[bool, says("whether times are seconds since 1970")]
    times: Annotated[list[float], says("of the rows, in their order")]
    values: Annotated[dict[str, list[float | None]], says("the columns of numbers by name; null is missing")]
    notes: Annotated[list[str], says("what was decided or left out while reading")]


@dataclass
class ReadReply(Reply):
    """The series of a file by name; one that is alone is called by the empty name."""

    series: Annotated[dict[str, ReadSeries], says("in the order in which they first appear in the file")]
