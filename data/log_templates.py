"""Assign log lines to templates. Lines that differ only in numbers and names have the same template.

Source: He, Zhu, Zheng and Lyu, Drain: an online log parsing approach with fixed depth tree, ICWS 2017. Lines with the
same number of words and the same first word are compared. A line is assigned to the template with the most equal words,
if these are more than half of the words without numbers. Words that differ become `<*>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

WILD: Final = "<*>"
SIMILAR: Final = 0.5
MOST_TEMPLATES: Final = 1_024
# Maximum number of templates with which a line is compared, and maximum number of its words that are compared.
MOST_COMPARED: Final = 100
MOST_WORDS: Final = 100
# Hexadecimal number, UUID, number or address.
_VARIABLE: Final = re.compile(
    r"0x[0-9a-fA-F]+|\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]{4,12})*\b|[-+]?\d+(?:[.:,/-]\d+)*"
)


class Templates:
    """Templates of log lines, numbered from 1. If there are already `MOST_TEMPLATES`, other lines have the number 0.

    Args:
        texts: Known templates, as `texts` returned them.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._words: list[list[str]] = []
        self._by_key: dict[tuple[int, str], list[int]] = {}
        for text in texts:
            self._add(text.split())

    @property
    def texts(self) -> list[str]:
        """All templates, in order of their numbers."""
        return [" ".join(words) for words in self._words]

    def number(self, line: str) -> int:
        """Return the number of the template of a line. If no template is similar, a new one is added."""
        words = _VARIABLE.sub(WILD, line).split()[:MOST_WORDS]
        best, most = 0, SIMILAR * sum(word != WILD for word in words)
        for number in self._by_key.get(_key(words), ()):
            template = self._words[number - 1]
            equal = sum(one == other != WILD for one, other in zip(template, words, strict=True))
            if equal > most or template == words:
                best, most = number, equal
        if best:
            template = self._words[best - 1]
            template[:] = [one if one == other else WILD for one, other in zip(template, words, strict=True)]
            return best
        return self._add(words)

    def _add(self, words: list[str]) -> int:
        same = self._by_key.setdefault(_key(words), [])
        if not words or len(self._words) == MOST_TEMPLATES or len(same) == MOST_COMPARED:
            return 0
        self._words.append(words)
        same.append(len(self._words))
        return len(self._words)


def _key(words: list[str]) -> tuple[int, str]:
    return len(words), words[0] if words and WILD not in words[0] else WILD
