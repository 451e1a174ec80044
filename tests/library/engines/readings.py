"""Readings of some rooms, and how the tests of engines filter them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).parents[3]
HOW: dict[str, Any] = {"key": "room", "time": "t", "model": "auto", "alarm": 0.02, "fields": ("mean", "std", "alarm")}
ROOMS = ("hall", "attic", "cellar", "loft", "shed")


def readings(rows: int = 600) -> pa.Table:
    """Rows in the order of time, with a spike."""
    draw = np.random.default_rng(8)
    values = draw.normal(size=rows)
    values[rows // 2] = 40
    return pa.table({"room": draw.choice(ROOMS, rows), "t": 60.0 * np.arange(rows), "celsius": values})


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    """The same columns, rows and bits, in any order of rows."""
    assert found.column_names == expected.column_names
    found, expected = (table.sort_by("t") for table in (found, expected))
    for name in expected.column_names:
        assert found[name].to_pylist() == expected[name].to_pylist(), name
