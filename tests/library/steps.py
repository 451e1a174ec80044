"""Observations of a stream, and its steps as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.testclient import TestClient

ROWS = 200


def measured(columns: int = 1, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Times at a step that varies, and walks with a gap, spikes and a missing number."""
    draw = np.random.default_rng(3)
    values = 20 + draw.normal(size=(rows, columns)).cumsum(axis=0)
    values[50:55] = np.nan
    values[70 % rows, 0], values[90 % rows, -1] = 60, np.nan
    return 60.0 * np.arange(rows) + draw.uniform(0, 20, rows), values


def as_rows(values: np.ndarray) -> list[list[float | None] | None]:
    return [None if np.isnan(row).all() else [None if x != x else x for x in row.tolist()] for row in values]  # noqa: PLR0124


def shown(step: Any) -> dict[str, Any]:
    """A step as JSON has it."""
    return {
        **vars(step),
        "forecast": [vars(point) for point in step.forecast],
        "raised": step.raised and vars(step.raised),
        "samples": [list(sample) for sample in step.samples],
    }


def in_order(step: Any) -> dict[str, Any]:
    """A step without the marks of a late one."""
    return {name: value for name, value in shown(step).items() if name not in ("late", "recomputed", "weights")}


def asked(server: TestClient, request: dict[str, Any]) -> Any:
    reply = server.post("/filter", json=request)
    assert reply.status_code == 200, reply.text
    return reply.json()
