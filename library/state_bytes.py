"""The state of a stream as bytes: a magic word, the length of a description, the description as JSON, and the packed
filter state.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rfa.library.models import Model, find_model
from rfa.library.options import OutputOptions

_MAGIC: Final = b"RFAP\x01"
_LENGTH: Final = struct.Struct("<I")
_MOST_DESCRIPTION: Final = 2_097_152


@dataclass(frozen=True)
class StoredStream:
    """The description of a stream in its state.

    Attributes:
        covariates: names of its known covariates.
        late: length of its window for late rows. None without one.
        payload: the packed filter state, followed by that window.
    """

    model: Model
    request: OutputOptions
    covariates: tuple[str, ...]
    late: float | None
    payload: bytes


def describe(model: Model, request: OutputOptions, covariates: Sequence[str] = (), late: float | None = None) -> bytes:
    """Return the bytes of a state before its packed filter state."""
    description = {
        "model": model.name,
        "digest": model.digest,
        "columns": model.runtime.observation_size,
        "system": model.system,
        "wanted": request.document(),
        "known": covariates,
        "late": late,
    }
    text = json.dumps(description).encode()
    return b"".join((_MAGIC, _LENGTH.pack(len(text)), text))


def stored_stream(state: bytes, model: str | Path | None = None) -> StoredStream:
    """Return the stream described in a state.

    Args:
        model: directory of the bundle, if it was moved.

    Raises:
        ValueError: If the bytes are not a state of a stream, or belong to another version of its model.
        FileNotFoundError: If the bundle is missing.
    """
    description, payload = split_description(state)
    try:
        name, digest, columns, options, system = (
            description[key] for key in ("model", "digest", "columns", "wanted", "system")
        )
        request = OutputOptions.from_document(options)
        covariates = tuple(map(str, description.get("known", ())))
    except (KeyError, TypeError, ValueError):
        raise ValueError("the bytes are not a state of a Stream") from None
    if model is None and system is None:
        model = name
    found = find_model(model, columns, system, len(covariates))
    if found.digest != digest:
        raise ValueError(f"the state belongs to another version of model {name!r}; start a new stream")
    return StoredStream(found, request, covariates, description.get("late"), payload)


def split_description(state: bytes) -> tuple[Any, bytes]:
    """Return the description and the packed filter state.

    Raises:
        ValueError: If the bytes are not a state of a stream.
    """
    begin = len(_MAGIC) + _LENGTH.size
    try:
        if not state.startswith(_MAGIC):
            raise ValueError
        (length,) = _LENGTH.unpack_from(state, len(_MAGIC))
        if length > _MOST_DESCRIPTION:
            raise ValueError
        return json.loads(state[begin : begin + length]), state[begin + length :]
    except (ValueError, TypeError, AttributeError, struct.error):
        raise ValueError("the bytes are not a state of a Stream") from None
