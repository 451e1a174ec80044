"""Files that were written before anything was run on them, each with its right reading."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.data.kind import Kind

FOLDER = Path(__file__).parent / "held_back"


def held_back() -> Iterator[Kind]:
    """The files of the folder `held_back`."""
    for line in (FOLDER / "readings.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield Kind(
            row["kind"],
            (FOLDER / row["file"]).read_bytes(),
            {tuple(one["key"]): (_times(one["times"]), one["columns"]) for one in row.get("series", [])},
            row.get("options", {}),
            row.get("note", ""),
            row.get("refused", ""),
            row.get("mended", {}),
        )


def _times(times: Any) -> list[float]:
    if isinstance(times, list):
        return times
    if isinstance(times["first"], str):  # without a year: the latest one
        now = datetime.now(UTC)
        moments = (datetime.fromisoformat(f"{year}-{times['first']}+00:00") for year in (now.year, now.year - 1))
        times["first"] = next(moment for moment in moments if moment <= now).timestamp()
    return [times["first"] + k * times["step"] for k in range(times["rows"])]
