"""Parse selectors of series such as `name{label="value"}`, for sources that do not have a query language."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# Names and values of the labels of a series, sorted by name.
Labels = tuple[tuple[str, str], ...]
NAME: Final = "__name__"
_METRIC: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_MATCHER: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(,|$)')
_SELECTOR: Final = re.compile(rf"\s*({_METRIC})?\s*(?:\{{(.*)\}})?\s*", re.DOTALL)


@dataclass(frozen=True)
class Selector:
    """Conditions on the labels of a series.

    Attributes:
        name: Name of the metric. If None, any name matches.
        matchers: Label, operator and value of each condition.
    """

    name: str | None
    matchers: tuple[tuple[str, str, str], ...]

    def matches(self, labels: Labels) -> bool:
        """Return whether the selector matches a series. A missing label counts as an empty string."""
        found = dict(labels)
        if self.name is not None and found.get(NAME) != self.name:
            return False
        return all(_is_match(found.get(label, ""), operator, value) for label, operator, value in self.matchers)


def _is_match(found: str, operator: str, value: str) -> bool:
    is_equal = re.fullmatch(value, found) is not None if "~" in operator else found == value
    return is_equal != operator.startswith("!")


def parse_selector(text: str) -> Selector | None:
    """Return the selector in `text`, or None if it is not a valid selector."""
    whole = _SELECTOR.fullmatch(text)
    if whole is None or not text.strip():
        return None
    matchers, inner, position = [], (whole[2] or "").strip(), 0
    while position < len(inner):
        found = _MATCHER.match(inner, position)
        if found is None:
            return None
        value = re.sub(r"\\(.)", r"\1", found[3])
        if "~" in found[2]:
            value = found[3].replace("\\\\", "\\")
            try:
                re.compile(value)
            except re.error:
                return None
        matchers.append((found[1], found[2], value))
        position = found.end()
    return Selector(whole[1], tuple(matchers)) if whole[1] or matchers else None


def labels_of(names: dict[str, str]) -> Labels:
    """Return the labels of a series in sorted order."""
    return tuple(sorted(names.items()))
