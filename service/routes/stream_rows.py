"""Reject single rows of a series, so that a streamed reply can continue after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION, bias_out_of_range, check_size
from rfa.service.schemas.filter_requests import FilterRequest


def without_refused(body: FilterRequest, model: FilterRuntime) -> tuple[FilterRequest, dict[int, InvalidInput]]:
    """Check the rows of a request against the requirements of a model. Return the request with None in place of each
    rejected row, and the errors of these rows by position."""
    refused = dict(body.refused)
    for name, size in (
        ("observations", model.observation_size),
        ("input", model.state_size),
        ("bias", model.observation_size),
    ):
        for i, row in enumerate(getattr(body, name) or ()):
            if row is not None and len(row) != size and i not in refused:
                try:
                    check_size(f"{name}[{i}]", row, size, model.name)
                except InvalidInput as error:
                    refused[i] = error.with_traceback(None)
    for i, (row, offset) in enumerate(zip(body.observations or (), body.bias or (), strict=False)):
        if row is not None and offset is not None and i not in refused and _leaves_range(row, offset):
            refused[i] = bias_out_of_range(f"bias[{i}]")
    if not refused:
        return body, refused
    rows = {name: _nulled(getattr(body, name), refused) for name in ("observations", "noise", "input", "bias")}
    return body.model_copy(update=rows), refused


def times_of(body: FilterRequest, times: np.ndarray) -> np.ndarray:
    """Set the times of rows without a valid time to NaN, and return the times `[N]`."""
    for i, error in body.refused.items():
        if error.param == f"times[{i}]":
            times[i] = np.nan
    return times


def _leaves_range(row: Sequence[float | None], offset: Sequence[float]) -> bool:
    return any(y is not None and abs(y - b) > LARGEST_OBSERVATION for y, b in zip(row, offset, strict=True))


def _nulled(rows: Any, refused: dict[int, InvalidInput]) -> Any:
    return None if rows is None else [None if i in refused else row for i, row in enumerate(rows)]
