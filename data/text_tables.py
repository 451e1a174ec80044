"""Tables drawn as text, with rules of dashes or columns aligned by spaces, as CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

RULE: Final = re.compile(r"[\s|+:=-]*(-{3,}|={3,}|:-+|-+:)[\s|+:=-]*")
FOOTER: Final = re.compile(r"\(?\d+ rows?( in set.*| selected.*)?[.)]?", re.IGNORECASE)
GAP: Final = re.compile(r"\s{2,}|\t")
# Lines above a header, such as `Instrument:,UV-1800`.
TITLE: Final = re.compile(r'"?[^\d,;\t|":]{1,40}:"?\s*([,;\t|]|$)')
# Share of the lines that have bars, or as many cells as the others.
ALIGNED_SHARE: Final = 0.8
MOST_CHARACTERS: Final = 2**26


def as_separated(text: str, preview: Sequence[str], separators: str) -> str | None:
    """The rows of a drawn table with separators between their cells; None for other text.

    Args:
        preview: the first lines.
    """
    if len(text) > MOST_CHARACTERS:
        return None
    if any(RULE.fullmatch(line) for line in preview):
        lines = [line.strip() for line in text.splitlines()]
        rows = [line for line in lines if line and not (RULE.fullmatch(line) or FOOTER.fullmatch(line))]
        if sum("|" in row for row in rows) >= ALIGNED_SHARE * len(rows):
            return "\n".join(row.removeprefix("|").removesuffix("|").strip() for row in rows)
        return "\n".join(GAP.sub("\t", row) for row in rows) if _are_aligned(rows[: len(preview)]) else None
    has_separators = sum(any(sign in line for sign in separators) for line in preview)
    if has_separators > (1 - ALIGNED_SHARE) * len(preview) or not _are_aligned(preview):
        return None
    return "\n".join(GAP.sub("\t", line.strip()) for line in text.splitlines() if line.strip())


def count_titles(preview: Sequence[str]) -> int:
    """The number of lines above the header that name a property of the file; one such line may be a header."""
    count = next((k for k, line in enumerate(preview) if not TITLE.match(line)), 0)
    return count if count > 1 else 0


def _are_aligned(lines: Sequence[str]) -> bool:
    counts = [len(GAP.split(line.strip())) for line in lines if not RULE.fullmatch(line)]
    usual = max(counts, key=counts.count, default=0)
    return usual > 1 and counts.count(usual) >= ALIGNED_SHARE * len(counts)
