"""Remove lines that are not rows from CSV text: repeated headers, comments and footnotes."""

from __future__ import annotations

import re
from typing import Final

from rfa.data.header import is_data

# Maximum number of footnote lines below the rows, and number of characters that are searched for them.
MOST_FOOTNOTES, TAIL = 10, 10_000
# Comments among the rows, and maximum length of a text that is searched for them.
COMMENTED: Final = re.compile(r"\n(?:#[^\n]*(?:\n|$))+")
MOST_COMMENTED: Final = 2**26
# Maximum fraction of lines that are comments.
MOST_COMMENTS: Final = 0.2
QUOTED_LINE: Final = re.compile(r'^"[^"]*"\s*$')


def without_comments(text: str, start: int, encoded: bytes | None) -> tuple[str, bytes | None, tuple[str, ...]]:
    """Remove the comments among the rows of a text, which begin at `start`. Return the text; its UTF-8 encoding
    `encoded` if nothing was removed, and otherwise None; and notes."""
    if len(text) > MOST_COMMENTED or "\n#" not in text or not _has_comments(text[start:]):
        return text, encoded, ()
    note = "lines among the rows that begin with # are skipped"
    return text[:start] + COMMENTED.sub("\n", text[start:]), None, (note,)


def without_headers(
    text: str, header: str, start: int, encoded: bytes | None
) -> tuple[str, bytes | None, tuple[str, ...]]:
    """Remove the lines after `start` that repeat the header of a text, as in concatenated files. Return the same values
    as `without_comments`."""
    pattern = re.compile(rf"^{re.escape(header)}\r?$\n?", re.MULTILINE)
    if not header or text.find(header, start) < 0 or not (count := len(pattern.findall(text, start))):
        return text, encoded, ()
    text = text[:start] + pattern.sub("", text[start:])
    return text, None, (f"{count} lines that repeat the header are left out",)


def _has_comments(rows: str) -> bool:
    """Return whether a small fraction of the lines, except the first, begin with #."""
    count = rows.count("\n#")
    return 0 < count <= MOST_COMMENTS * rows.count("\n") and not rows.lstrip().startswith("#")


def without_footnotes(
    text: str, separator: str, width: int, start: int, encoded: bytes | None
) -> tuple[str, bytes | None, tuple[str, ...]]:
    """Remove the last lines of a text if they contain no separator, unlike the lines above them. Return the same values
    as `without_comments`.

    Args:
        text: Text of the file.
        separator: Separator of the cells.
        width: Number of cells of a row.
        start: Position in the text at which the rows begin.
        encoded: The text in UTF-8, if it is available.
    """
    count, size = 0, 0
    lines = text[max(start, len(text) - TAIL) :].splitlines(keepends=True)[1:]
    # Footnotes below a blank line may contain separators.
    has_blank = any(not line.strip() for line in lines[-2 * MOST_FOOTNOTES : -1])
    for line in reversed(lines):
        if line.count(separator) >= (max(1, width - 1) if has_blank else 1) or '"' in QUOTED_LINE.sub("", line):
            break
        if is_data([line]):
            return text, encoded, ()
        count, size = count + bool(line.strip()), size + len(line)
    else:
        return text, encoded, ()
    if not 0 < count <= MOST_FOOTNOTES:
        return text, encoded, ()
    return text[: len(text) - size], None, (f"{count} lines below the rows are skipped",)
