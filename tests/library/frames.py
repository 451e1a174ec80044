"""Readings of a room as tables of every kind, and their estimates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from starlette.testclient import TestClient

ROWS = 300
ZONE = "Europe/Berlin"


def readings(rows: int = ROWS, seed: int = 1) -> pd.DataFrame:
    """Half-hourly readings of a room in Berlin while clocks go forward, with a gap, a spike and labels."""
    draw = np.random.default_rng(seed)
    hours = np.arange(rows) / 2
    frame = pd.DataFrame(
        {
            "temp": 20 + 3 * np.sin(2 * np.pi * hours / 24) + draw.normal(size=rows),
            "room": pd.Categorical(["hall"] * (rows // 2) + ["attic"] * (rows // 2)),
            "humidity": 50 + draw.normal(size=rows).cumsum(),
        },
        index=pd.date_range("2024-03-29", periods=rows, freq="30min", tz=ZONE, name="at"),
    )
    frame.iloc[40:44, 0] = np.nan
    frame.iloc[200:201, 0] = 60.0
    return frame


def seconds(frame: pd.DataFrame) -> list[float]:
    found: list[float] = (frame.index.as_unit("s").asi8.astype(float)).tolist()
    return found


def observed(frame: pd.DataFrame, columns: list[str]) -> list[list[float | None]]:
    return [[None if x != x else x for x in row] for row in frame[columns].to_numpy(float).tolist()]  # noqa: PLR0124


def asked(server: TestClient, **request: Any) -> Any:
    reply = server.post("/filter", json={"levels": [0.5, 0.9], **request})
    assert reply.status_code == 200, reply.text
    return reply.json()


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(
        np.asarray(found, np.float64), np.array([math.nan if x is None else x for x in expected], np.float64)
    )


def as_given(frame: pd.DataFrame) -> dict[str, Any]:
    """The same readings in every kind that has a clock."""
    flat = frame.reset_index()
    return {
        "pandas": frame,
        "pandas with a column": flat.set_index(np.arange(len(flat)) + 7),
        "pandas of Arrow": flat.convert_dtypes(dtype_backend="pyarrow"),
        "polars": pl.from_pandas(flat),
        "arrow": pa.Table.from_pandas(flat, preserve_index=False),
        "batch": pa.RecordBatch.from_pandas(flat, preserve_index=False),
        "fields": flat[["at", "temp", "humidity"]].assign(at=flat["at"].dt.tz_convert(None)).to_records(index=False),
    }


def column(found: Any, name: str) -> Any:
    if isinstance(found, pa.Table):
        return found[name].to_pandas()
    return found[name].to_numpy() if isinstance(found, pl.DataFrame) else found[name]


KINDS: dict[str, type] = {
    "pandas": pd.DataFrame, "pandas with a column": pd.DataFrame, "pandas of Arrow": pd.DataFrame,
    "polars": pl.DataFrame, "arrow": pa.Table, "batch": pa.Table, "fields": np.ndarray,
}  # fmt: skip
