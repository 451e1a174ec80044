"""Mutated files: `python -m tests.soak.file_mutations --count 100000` reads them in bounded memory.

Each mutation follows from the seed and its number. A file must be read, or be refused with a ValueError, within twice
the time of the clean file and a constant.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from rfa.data import read_frame
from rfa.data.file_formats import read_table
from rfa.service.child_environment import data_bytes
from tests.data.kind import Kind

MEMORY_BYTES: Final = 1 << 30
SECONDS: Final = 0.5
MOST_CHANGES: Final = 3
CELLS: Final = (
    "", " ", "-", "NaN", "inf", "-1e400", "1e308", "9" * 400, "0x1F", "1,2,3", "1.234.567,8", "2024-13-45", "24:61",
    "0000-00-00", "99999999999", "12/12/12", "2024-02-30T25:00", "5 p", "(3", "<", "%", "€", "\u0663", "\ufeff", "\0",
    '"', '""', "'", "=1+1", "true", "Q5 2024", "W60", "1970", "-999", "\U0001f600", "a" * 5000, "1e", "+-1", ":", "T",
)  # fmt: skip
ENCODINGS: Final = ("utf-16", "utf-16-le", "utf-8-sig", "latin-1", "cp1252", "utf-32", "utf-7", "cp500")
SEPARATORS: Final = ",;\t| "


def clean_files() -> list[Kind]:
    """The files of the corpus that are read without a refusal."""
    from tests.data.test_kinds import KINDS

    return [kind for kind in KINDS if not kind.refused and not kind.options.keys() & {"query", "sheet"}]


def mutate(content: bytes, draw: random.Random) -> bytes:
    """A file with one to three changes."""
    for _ in range(draw.randint(1, MOST_CHANGES)):
        content = draw.choice((*OF_BYTES, *OF_TEXT))(content, draw)
    return content


def _span(content: Sequence[object], draw: random.Random) -> tuple[int, int]:
    begin = draw.randrange(len(content) + 1)
    return begin, min(len(content), begin + int(draw.expovariate(1 / 20)))


def _flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randint(1, 8) if content else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _remove(content: bytes, draw: random.Random) -> bytes:
    begin, end = _span(content, draw)
    return content[:begin] + content[end:]


def _insert(content: bytes, draw: random.Random) -> bytes:
    begin, _ = _span(content, draw)
    return content[:begin] + draw.randbytes(draw.randint(1, 30)) + content[begin:]


def _double(content: bytes, draw: random.Random) -> bytes:
    begin, end = _span(content, draw)
    return content[:end] + content[begin:end] * draw.randint(1, 5) + content[end:]


def _lines(change: Callable[[list[str], random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
    def changed(content: bytes, draw: random.Random) -> bytes:
        lines = content.decode("utf-8", "surrogateescape").split("\n")
        change(lines, draw)
        return "\n".join(lines).encode("utf-8", "surrogateescape")

    return changed


def _double_rows(lines: list[str], draw: random.Random) -> None:
    begin, end = _span(lines, draw)
    lines[end:end] = lines[begin:end]


def _shuffle_rows(lines: list[str], draw: random.Random) -> None:
    draw.shuffle(lines)


def _remove_row(lines: list[str], draw: random.Random) -> None:
    del lines[draw.randrange(len(lines))]
    lines.append("")


def _replace_cells(lines: list[str], draw: random.Random) -> None:
    separator = max(SEPARATORS, key=lambda sign: sum(line.count(sign) for line in lines[:20]))
    for _ in range(draw.randint(1, 5)):
        row = draw.randrange(len(lines))
        cells = lines[row].split(separator)
        cells[draw.randrange(len(cells))] = draw.choice(CELLS)
        lines[row] = separator.join(cells)


def _replace_column(lines: list[str], draw: random.Random) -> None:
    separator = max(SEPARATORS, key=lambda sign: sum(line.count(sign) for line in lines[:20]))
    chosen, cell = draw.randrange(4), draw.choice(CELLS)
    for row, line in enumerate(lines):
        cells = line.split(separator)
        if chosen < len(cells):
            cells[chosen] = cell
            lines[row] = separator.join(cells)


def _encode(content: bytes, draw: random.Random) -> bytes:
    return content.decode("utf-8", "replace").encode(draw.choice(ENCODINGS), "replace")


def _change_signs(content: bytes, draw: random.Random) -> bytes:
    old, new = draw.choice(((",", ";"), (",", "\t"), (".", ","), ("-", "/"), ("\n", "\r"), ("\n", "\r\n"), (":", "."),
                            (";", ","), (" ", "T"), ("{", "["), ('"', "'")))  # fmt: skip
    return content.replace(old.encode(), new.encode())


OF_BYTES: Final = (_flip, _cut, _remove, _insert, _double)
OF_TEXT: Final = (
    *map(_lines, (_double_rows, _shuffle_rows, _remove_row, _replace_cells, _replace_column)), _encode, _change_signs,
)  # fmt: skip


def read(content: bytes) -> str:
    """What becomes of a file: "read" or "refused".

    Raises:
        AssertionError: series are out of order or not finite.
        Exception: any other than ValueError is an error of the reader.
    """
    try:
        found = read_frame(read_table(content), refused=lambda key, error: None)
    except ValueError as error:
        assert str(error).strip(), "a refusal without a message"
        return "refused"
    for series in found.values():
        assert np.isfinite(series.times).all() and (np.diff(series.times) >= 0).all(), "times"
        assert not np.isinf(series.values).any() and len(series.values) == len(series.times), "values"
    return "read"


def run(seed: int, numbers: range, *, checks_time: bool) -> tuple[Counter[str], list[str]]:
    """Read the mutations of these numbers; returns how many were read and refused, and what failed."""
    files, counts, failed = clean_files(), Counter[str](), []
    for number in numbers:
        draw = random.Random(f"{seed} {number}")
        kind = draw.choice(files)
        content = mutate(kind.content, draw)
        begin = time.process_time()
        try:
            counts[read(content)] += 1
        except Exception as error:  # what this search is for
            failed.append(f"{number} ({kind.name}): {type(error).__name__}: {str(error)[:200]}")
        taken = time.process_time() - begin
        if checks_time and taken > SECONDS:
            clean = min(_seconds(kind.content) for _ in range(2))
            if taken > 2 * clean + SECONDS:
                failed.append(f"{number} ({kind.name}): {taken:.2f} s, the clean file {clean:.2f} s")
    return counts, failed


def _seconds(content: bytes) -> float:
    begin = time.process_time()
    read(content)
    return time.process_time() - begin


def main() -> None:
    """Read mutated files in bounded memory, and print what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for number, kind in enumerate(clean_files()):  # libraries are loaded before memory is limited
        if b"\0" in kind.content or number % 20 == 0:
            read(kind.content)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + MEMORY_BYTES,) * 2)
    numbers = range(options.first, options.first + options.count)
    counts, failed = run(options.seed, numbers, checks_time=True)
    print(dict(counts), *failed, sep="\n")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
