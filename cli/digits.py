"""Round output numbers to their significant digits, given the width of their interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np

FULL: Final = "full"
# Maximum number of significant digits of a double.
MOST_DIGITS: Final = 15
# Width of a 90 % interval in standard deviations.
STDS: Final = 3.29


def parse_digits(text: str) -> int | None:
    """Parse the value of `--digits`, or return None for all digits.

    Raises:
        ValueError: If the text is neither a number of digits nor "full".
    """
    if text == FULL:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_DIGITS:
        raise ValueError(f"--digits must be {FULL} or a number from 1 to {MOST_DIGITS}, got {text!r}")
    return int(text)


def round_estimates(parts: Mapping[str, np.ndarray], digits: int | None) -> dict[str, np.ndarray]:
    """Return columns `[N]` in which each row is rounded according to the width of its 90 % interval.

    The digits up to `digits` places after the leading digit of the width are kept. For a width of 2.34 and 3 digits,
    numbers are rounded to thousandths. Digits before the decimal point are always kept. If the width is 0, that of a
    normal distribution with the standard deviation is used.

    Args:
        parts: Mapping from names to columns. It must include "low90" and "high90", or "std".
        digits: Number of digits. None disables rounding.
    """
    import numpy as np

    if digits is None:
        return dict(parts)
    width = parts["high90"] - parts["low90"] if "high90" in parts else STDS * parts["std"]
    if "std" in parts:
        width = np.where(width == 0, STDS * parts["std"], width)
    return {name: _round(values, width, digits) for name, values in parts.items()}


def round_score(values: np.ndarray, digits: int | None) -> np.ndarray:
    """Return scores `[N]`, rounded to `digits` digits after their leading digit. For scores between 0.5 and 1, the
    leading digit of the distance from 1 counts."""
    import numpy as np

    if digits is None:
        return values
    return _round(values, np.where(values < 1, np.minimum(values, 1 - values), values), digits)


def _round(values: np.ndarray, width: np.ndarray, digits: int) -> np.ndarray:
    """Return the values rounded according to the width. Values whose width is 0, missing or infinite are not
    rounded."""
    import numpy as np

    is_usual = np.isfinite(values) & np.isfinite(width) & (width > 0)
    places = digits - np.floor(np.log10(width, out=np.zeros_like(width), where=is_usual)).astype(int)
    found = values.copy()
    for count in np.unique(places[is_usual]).tolist():
        if count <= MOST_DIGITS:
            chosen = is_usual & (places == count)
            found[chosen] = np.round(values[chosen], max(count, 0))
    return found
