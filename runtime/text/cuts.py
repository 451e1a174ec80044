r"""Where a text may be cut in two without a change of its tokens.

A byte-level BPE splits a text into words by GPT-2's expression

    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

and merges pairs of bytes within each word. A cut changes nothing

    before a space or line break that follows something else: no word reaches across from the left, and what begins
        there begins so whatever lies to the left
    within a run of letters, of digits, of signs or of whitespace, at least four characters after its beginning (a
        contraction takes three), where no token holds the two bytes at the cut side by side: words end and begin
        there as they go on without it, and no merge reaches across

and in neither case within a special token, which is found before the words are. Where it is not certain what the
expression takes a character for, there is no cut.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np

Kind = Literal["letter", "digit", "sign", "space"]
RUN: Final = 4
_BEFORE_SPACE: Final = re.compile(r"[!-~\w](?=[ \n])")
_SPACES: Final = " \n\r\t"
_KINDS: Final[dict[str, Kind]] = {"L": "letter", "N": "digit", "P": "sign", "S": "sign"}


def check_splitting(tokenizer: Mapping[str, Any]) -> None:
    """Check that a tokenizer splits texts as this module assumes.

    Args:
        tokenizer: content of tokenizer.json.

    Raises:
        ValueError: it splits or changes texts in another way.
    """
    split = tokenizer.get("pre_tokenizer") or {}
    added = tokenizer.get("added_tokens") or []
    is_supported = (
        split.get("type") == "ByteLevel"
        and split.get("use_regex", True)
        and not split.get("add_prefix_space", True)
        and tokenizer.get("normalizer") is None
        and not any(token.get(flag) for token in added for flag in ("lstrip", "rstrip", "single_word"))
    )
    if not is_supported:
        raise ValueError("the tokenizer must split texts as GPT-2 does: ByteLevel, no prefix space, no normalizer")


class Cuts:
    """Positions where texts of one vocabulary may be cut.

    Args:
        tokens: bytes of the ordinary tokens.
        special: texts of the special ones.
    """

    def __init__(self, tokens: Iterable[bytes], special: Sequence[str]) -> None:
        self._special = tuple(special)
        self._longest_special = max(map(len, special), default=0)
        self._joined = np.zeros((256, 256), dtype=bool)
        for token in tokens:
            values = np.frombuffer(token, dtype=np.uint8)
            self._joined[values[:-1], values[1:]] = True

    def first(self, text: str, begin: int, end: int) -> int | None:
        """The first position in [begin, end), begin > 0, before a space if there is one."""
        return next(self._places(text, begin, end, 1), None)

    def last(self, text: str, begin: int, end: int) -> int | None:
        """The last position in [begin, end), begin > 0, before a space if there is one."""
        return next(self._places(text, begin, end, -1), None)

    def _places(self, text: str, begin: int, end: int, step: int) -> Iterator[int]:
        spaces = [match.end() for match in _BEFORE_SPACE.finditer(text, begin - 1, end)]
        runs = (place for place in range(max(begin, RUN), end)[::step] if self._is_in_run(text, place))
        for places in (spaces[::step], runs):
            yield from (place for place in places if not self._is_in_special(text, place))

    def _is_in_run(self, text: str, place: int) -> bool:
        run = text[place - RUN : place + 1]
        kind = _kind(run[0])
        if run != run[0] * len(run) and (kind is None or any(_kind(character) != kind for character in run[1:])):
            return False
        if run[0].isspace():
            # One character of the whitespace belongs to the word behind it: neither side may consist of that alone.
            if kind != "space" or text[place + 1 : place + 2] not in tuple(_SPACES):
                return False
        elif run[-1] == "'":
            return False
        return not self._joined[run[-2].encode()[-1], run[-1].encode()[0]]

    def _is_in_special(self, text: str, place: int) -> bool:
        around = text[max(0, place - self._longest_special + 1) : place + self._longest_special - 1]
        return any(special in around for special in self._special)


@lru_cache(maxsize=4_096)
def _kind(character: str) -> Kind | None:
    """The kind of a character in the expression; None if uncertain, as for characters of a newer Unicode."""
    if character in _SPACES:
        return "space"
    now, once = unicodedata.category(character)[0], unicodedata.ucd_3_2_0.category(character)[0]
    return _KINDS.get(now) if now == once and character != "'" else None
