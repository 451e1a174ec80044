"""What a caller wants to be told, checked as the server checks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rfa.library.models import plain_errors
from rfa.library.spans import Span, leads_of
from rfa.service.schemas.requests import FilterStreamRequest
from rfa.service.validation import validated

LEVELS = (0.5, 0.9)
# A rate, or all that the server takes as `alarm`.
AlarmRule = float | str | Mapping[str, Any]


def wanted(
    levels: Sequence[float],
    horizon: Sequence[float | Span] = (),
    alarm: AlarmRule | None = None,
    samples: int = 0,
    seed: int | None = None,
) -> FilterStreamRequest:
    """What a stream's first frame would say.

    Raises:
        ValueError: naming the field.
    """
    document = {
        "levels": _numbers(levels),
        "horizon": list(leads_of(horizon)),
        "alarm": dict(alarm) if isinstance(alarm, Mapping) else None if alarm is None else {"rate": alarm},
        "samples": samples,
        "seed": seed,
    }
    if not document["levels"]:
        raise ValueError("levels must not be empty: give some such as (0.5, 0.9)")
    with plain_errors():
        return validated(FilterStreamRequest, document, "the arguments")


def _numbers(levels: Sequence[float]) -> list[float]:
    try:
        return [float(level) for level in levels]
    except (TypeError, ValueError):
        raise ValueError(f"levels takes numbers between 0 and 1 such as (0.5, 0.9), got {levels!r}") from None
