"""Options for observations that arrive late in a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rfa.runtime.uncertainty.input import window_of
from rfa.runtime.uncertainty.interface import LateOptions

# A window such as "5min" or 300.0, or the server's `late`, {"window": "5min"}.
Late = float | str | Mapping[str, Any]


def late_options(late: Late | None, packed: bytes = b"") -> LateOptions | None:
    """Convert the argument `late` to options for the runtime, or return None if late observations are not accepted.

    Args:
        packed: Window stored in the state from which the stream continues.

    Raises:
        ValueError: If `late` is not a valid window.
    """
    if late is None:
        return None
    if isinstance(late, Mapping) and set(late) != {"window"}:
        raise ValueError(
            'late must be a duration or a mapping with the single key \'window\', such as {"window": "5min"}'
        )
    return LateOptions(window_of(late["window"] if isinstance(late, Mapping) else late), packed)
