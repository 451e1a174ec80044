"""Parse frames with observations. Frames with the usual fields are parsed faster."""

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
# Fields of a frame: t, y, noise, input, bias and known.
Frame = tuple[
    float | None, list[float | None] | None, float | None, list[float] | None, list[float] | None,
    dict[str, list[float | None]] | None,
]  # fmt: skip
_NUMBERS = (float, int)  # compared with the result of `type`, which excludes bool


def parse_observation(document: Any) -> Frame:
    """Validate a frame, and return its fields. The rules are those of `StreamObservation`, but valid frames with only
    `t`, `y` and `noise` are parsed faster.

    Raises:
        InvalidRequest: If a field is invalid.
    """
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
    """Return whether `y` is a valid observation: a list of numbers and None."""
    if type(y) is not list or not 1 <= len(y) <= MOST_COMPONENTS:
        return False
    for value in y:
        if value is not None and (
            type(value) not in _NUMBERS or not -LARGEST_OBSERVATION <= value <= LARGEST_OBSERVATION
        ):
            return False
    return True
