"""Read tables that a program prints repeatedly, each below a line with the time, such as psql with its watch
command."""

from __future__ import annotations

import re
from typing import Final

from rfa.data.text_blocks import Block
from rfa.data.text_tables import RULE, split_spaces
from rfa.data.time_formats import candidate_formats

# Maximum length of a line that is a time, and the text that programs write after the time.
LONGEST: Final = 60
BEHIND: Final = re.compile(r"\s*(\(every [\d.]+ ?s\)|UTC|GMT)\s*")
ZONE: Final = re.compile(r"\b(?:CES?T|[ECMP][SD]T|BST|MES?Z)\b ?")
COUNT: Final = re.compile(r"\(\d+ rows?\)")
FEWEST_BLOCKS: Final = 3
MOST_CHARACTERS: Final = 2**26
# Number of characters that are searched for such tables.
HEAD: Final = 20_000
TIME: Final = "time"


def find_timed_blocks(text: str) -> list[Block]:
    """Return the tables, each with the time in a first column. The result is empty for other text."""
    first = [line.strip() for line in text[:HEAD].splitlines()]
    marks = sum(bool(_time(line)) for line in first)
    if not FEWEST_BLOCKS <= marks <= len(first) / 2 or len(text) > MOST_CHARACTERS:
        return []
    lines = [line.strip() for line in text.splitlines()]
    tables: dict[str, list[str]] = {}
    time, header = "", ""
    for line in lines:
        if moment := _time(line):
            time, header = moment, ""
        elif not line:
            header = ""
        elif time and not RULE.fullmatch(line) and not COUNT.fullmatch(line):
            cells = [cell.strip() for cell in line.split("|")] if "|" in line else split_spaces(line)
            if not header and not any(re.search(r"\d", cell) for cell in cells):
                header = "\t".join(cells[1:] if line.split()[0].endswith(":") else cells)
                tables.setdefault(header, [])
            elif header and len(cells) == header.count("\t") + 1:
                tables[header].append("\t".join([time, *cells]))
    return [Block([f"{TIME}\t{header}", *rows], 0) for header, rows in tables.items() if len(rows) >= FEWEST_BLOCKS]


def _time(line: str) -> str:
    """Return a line that is a time, without the text after the time. Return an empty string for other lines."""
    if not 8 < len(line) <= LONGEST or line.count(":") < 1 or not re.search(r"\d", line):
        return ""
    plain = ZONE.sub("", BEHIND.sub("", line))
    return plain if candidate_formats(plain) else ""
