"""Convert the state of a stream to bytes and back.

The bytes contain a magic word, the length of a description, the description as JSON, and the compressed state of the
filter.
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
    """Description of a stream, which is part of its state.

    Attributes:
        model, request: The filter, and its outputs.
        covariates: Names of the columns whose future values are known.
        late: Length of the window for late rows. None if late rows are not accepted.
        payload: Compressed state of the filter, followed by the window for late rows.
    """

    model: Model
    request: OutputOptions
    covariates: tuple[str, ...]
    late: float | None
    payload: bytes


def describe(model: Model, request: OutputOptions, covariates: Sequence[str] = (), late: float | None = None) -> bytes:
    """Return the part of a state that precedes the compressed state of the filter."""
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
    """Return the description of the stream in a state.

    Args:
        state: State of a stream, as bytes.
        model: Directory of the bundle, if it was moved.

    Raises:
        ValueError: If `state` is not a state of a stream, or belongs to another version of its model.
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
        raise ValueError(
            "the bytes are not the state of a Stream, or are damaged; pass the bytes that its method state returned"
        ) from None
    if model is None and system is None:
        model = name
    found = find_model(model, columns, system, len(covariates))
    if found.digest != digest:
        raise ValueError(f"the state was created by another version of model {name!r}; start a new stream")
    return StoredStream(found, request, covariates, description.get("late"), payload)


def split_description(state: bytes) -> tuple[Any, bytes]:
    """Split a state into the description and the compressed state of the filter.

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
        raise ValueError(
            "the bytes are not the state of a Stream, or are damaged; pass the bytes that its method state returned"
        ) from None
