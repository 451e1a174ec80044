r"""Positions where a text can be cut in two without changing its tokens.

A byte-level BPE splits a text into words with GPT-2's regular expression

    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

and merges pairs of bytes within each word. A cut does not change the tokens at these positions:

    before a space or line break that follows another kind of character: no word extends across it from the left, and
        the words on its right do not depend on the text on its left
    within a run of letters, digits, signs or white space, at least four characters after its beginning (a contraction
        has three), where no token contains the two bytes next to the cut: words on both sides are the same as without
        the cut, and no merge extends across it

Special tokens are found before words, so a cut must not be within a special token. Texts are not cut where the kind of
a character is uncertain.
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
        tokenizer: Content of tokenizer.json.

    Raises:
        ValueError: If the tokenizer splits or normalises texts in another way.
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
    """Finds positions where texts of a vocabulary can be cut.

    Args:
        tokens: Bytes of the ordinary tokens.
        special: Texts of the special tokens.
    """

    def __init__(self, tokens: Iterable[bytes], special: Sequence[str]) -> None:
        self._special = tuple(special)
        self._longest_special = max(map(len, special), default=0)
        self._joined = np.zeros((256, 256), dtype=bool)
        for token in tokens:
            values = np.frombuffer(token, dtype=np.uint8)
            self._joined[values[:-1], values[1:]] = True

    def first(self, text: str, begin: int, end: int) -> int | None:
        """Return the first position in [begin, end), where begin > 0. Positions before a space are preferred. Return
        None if the text cannot be cut in this range."""
        return next(self._places(text, begin, end, 1), None)

    def last(self, text: str, begin: int, end: int) -> int | None:
        """Return the last position in [begin, end), where begin > 0. Positions before a space are preferred. Return
        None if the text cannot be cut in this range."""
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
            # The last white space character belongs to the next word, so neither side may consist of it alone.
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
    """Return the kind of a character, such as letter or digit, in GPT-2's regular expression. Return None if the kind
    is uncertain, as for recent Unicode characters."""
    if character in _SPACES:
        return "space"
    now, once = unicodedata.category(character)[0], unicodedata.ucd_3_2_0.category(character)[0]
    return _KINDS.get(now) if now == once and character != "'" else None
