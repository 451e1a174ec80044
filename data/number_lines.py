"""Read the numbers in lines of text that differ only in their numbers, such as those of a log."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

from rfa.data.first_lines import check_size
from rfa.data.json_values import Rows
from rfa.data.log_lines import is_log_line, stamp_of
from rfa.data.table import unique_names
from rfa.data.units import TIMES, named

# A number that is not part of a word, a date or an address. Letters directly after it are its unit.
NUMBER: Final = re.compile(
    r"(?<![\w.])(?<!\d:)(?:(?<=[\s=(\[>])[+-])?\d+(?:\.\d+)?(?:[A-Za-zµ]{1,3}|%)?(?!\w|:\d|\.\d)"
)
ADDRESS: Final = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b(?=[0-9a-f-]*\d)[0-9a-f]{8}(?:-[0-9a-f]{4,12})*\b|0x[0-9a-fA-F]+|"
    r"(?<!/)\b\d{1,4}/\d{1,2}/\d{1,4}\b(?!/)|(?<=\w)\[\d+\](?=:)|^\[\d+\](?= )|\b\d+:\d\d(?::\d\d)?(?!\w)"
)
NAME: Final = re.compile(r"(?<!\w)([^\W\d][\w%./-]*?)\W{0,3}$")
UNIT: Final = re.compile(r" *(%|°[CF]|[A-Za-zµ]+(?:/\w+)?)(?![\w=:(])")
DATA: Final = re.compile(r"[KMGT]?(?:[Bb]ytes|bits)(?:/sec|ps)?|pkts?(?:/s)?")
UNITS: Final = frozenset((*TIMES, "%", "°C", "°F", "C", "F", "W", "V", "A", "hPa", "bytes", "kB", "MB", "GB", "B/s"))
# Text that follows a word that is the name of the number before it.
END: Final = re.compile(r"\s*[,;)\]]|\s*$")
WORD: Final = re.compile(r"[^\W\d_]{2,}")
DECIMAL: Final = re.compile(r"\d+\.\d|=\s*\d")
TIME: Final = "time"
# Minimum number of lines, minimum fraction of the lines with the most frequent wording, and maximum number of columns.
FEWEST_LINES, SHARE, MOST_COLUMNS = 8, 0.9, 50
# Minimum number of words in lines without a time.
FEWEST_WORDS: Final = 3
# A time of day before the text.
OF_DAY: Final = re.compile(r"\s*(\d\d:\d\d:\d\d)\s")
PREVIEW: Final = 20


def read_number_lines(text: str, *, needs_decimals: bool = True) -> Rows | None:
    """Return the numbers in lines that differ only in their numbers, with the times of the lines. Return None for other
    text.

    Args:
        text: Text of the file.
        needs_decimals: Whether at least one number must have a decimal point or an equals sign before it, as
            measurements do.

    Raises:
        ValueError: If the file is too large.
    """
    first = [line for line in text[:100_000].splitlines()[: PREVIEW + 1] if line.strip()][1:]
    if len(first) < FEWEST_LINES - 1 or not _form(first):
        return None
    check_size(text, "a file of lines with numbers may have at most 256 MiB; split it, or save it as CSV")
    lines = [line for line in text.splitlines() if line.strip()]
    form = _form(lines)
    if form is None or not NUMBER.sub("", form[0]):
        return None
    rows, times, has_year = [], [], True
    for line in lines:
        time, rest, is_whole = stamp_of(line)
        if _skeleton(rest) == form[0]:
            rows.append(NUMBER.findall(ADDRESS.sub("#", rest)))
            of_day = OF_DAY.match(line)
            text_of_day = of_day[1] if of_day else None
            times.append(text_of_day if time is None else datetime.fromtimestamp(time, UTC).isoformat())
            has_year = has_year and is_whole
    cells = [list(column) for column in zip(*rows, strict=True)]
    if needs_decimals and not DECIMAL.search(ADDRESS.sub("", form[1])):
        return None
    if len(cells) > MOST_COLUMNS or not any(len(set(column)) > 1 for column in cells):
        return None
    names = unique_names([TIME, *_names(form[1])])[1:]
    columns: dict[str, Any] = {TIME: times} if None not in times else {}
    columns |= dict(zip(names, cells, strict=True))
    note = f"numbers are read from {len(rows)} of {len(lines)} lines, such as {form[1].strip()[:60]!r}"
    found = Rows(
        note=note
        if has_year or TIME not in columns
        else f"{note}; the times have no year, so {str(times[0])[:4]} is used"
    )
    found.add({}, **columns)
    return found


def _form(lines: list[str]) -> tuple[str, str] | None:
    """Return the most frequent wording of lines, in which # replaces each number, and an example. Return None if the
    lines are a table, or differ in more than their numbers."""
    forms: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for line in lines:
        _, rest, _ = stamp_of(line)
        skeleton = _skeleton(rest)
        forms[skeleton] += 1
        examples.setdefault(skeleton, line)
    form, count = forms.most_common(1)[0]
    example = examples[form]
    words = len(WORD.findall(form))
    is_log = words and is_log_line(example)
    if count < SHARE * len(lines) - 4 or count < 0.5 * len(lines) or "#" not in form:
        return None
    plain = re.sub(r"\([^()]*\)", "", example)
    has_cells = re.search(r"[;\t|{]|,(?! )", plain) or 2 * plain.count(",") > len(form.split())
    if not is_log and (words < FEWEST_WORDS or has_cells):
        return None
    return form, stamp_of(example)[1]


def _skeleton(line: str) -> str:
    return " ".join(NUMBER.sub("#", ADDRESS.sub("@", line)).split())


def _names(example: str) -> list[str]:
    """Return a name for each number of a line: the words before the number, followed by the unit after it."""
    text = ADDRESS.sub("#", example)
    found, end = [], 0
    for k, number in enumerate(NUMBER.finditer(text), start=1):
        before = NAME.search(text[end : number.start()])
        unit = UNIT.match(text[number.end() :])
        written = unit[1] if unit and (unit[1] in UNITS or DATA.fullmatch(unit[1])) else ""
        name = before[1] if before and not before[1].isdigit() else f"number {k}"
        if unit and not written and name == f"number {k}" and END.match(text, number.end() + unit.end()):
            name = unit[1]
        found.append(named(name, written if written != name else ""))
        end = number.end() + (unit.end() if unit and written else 0)
    return found
