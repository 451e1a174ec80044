"""Fast parser for the usual frames with observations."""

from __future__ import annotations

from typing import Any

from rfa.runtime.uncertainty.input import (
    LARGEST_OBSERVATION,
    LARGEST_TIME,
    LEAST_NOISE,
    MOST_COMPONENTS,
    MOST_NOISE,
)
from rfa.service.schemas.stream_requests import StreamObservation
from rfa.service.validation import validated

FRAME = "The frame"
_PLAIN_FIELDS = frozenset(StreamObservation.model_fields) - {"input", "bias", "known"}
# t, y, noise, input, bias, known
Frame = tuple[
    float | None, list[float | None] | None, float | None, list[float] | None, list[float] | None,
    dict[str, list[float | None]] | None,
]  # fmt: skip
_NUMBERS = (float, int)  # compared with `type`, which excludes bool


def parse_observation(document: Any) -> Frame:
    """Return the fields of a frame, by the same rules as `StreamObservation`. It is faster for valid frames with simple
    fields."""
    if type(document) is dict and "y" in document and document.keys() <= _PLAIN_FIELDS:
        t, y, noise = document.get("t"), document["y"], document.get("noise")
        if (
            (t is None or (type(t) in _NUMBERS and -LARGEST_TIME <= t <= LARGEST_TIME))
            and (y is None or is_observation(y))
            and (noise is None or (type(noise) in _NUMBERS and LEAST_NOISE <= noise <= MOST_NOISE))
        ):
            return None if t is None else float(t), y, None if noise is None else float(noise), None, None, None
    frame = validated(StreamObservation, document, FRAME)
    return frame.t, frame.y, frame.noise, frame.input, frame.bias, frame.known


def is_observation(y: Any) -> bool:
    """Return whether `y` is a valid list of components."""
    if type(y) is not list or not 1 <= len(y) <= MOST_COMPONENTS:
        return False
    for value in y:
        if value is not None and (
            type(value) not in _NUMBERS or not -LARGEST_OBSERVATION <= value <= LARGEST_OBSERVATION
        ):
            return False
    return True
