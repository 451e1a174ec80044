"""Read text files with a header above the rows, such as ARFF and .tsf files with `@attribute` lines, and recordings of
instruments.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

import numpy as np

from rfa.data.header import is_data
from rfa.data.json_shapes import time_steps
from rfa.data.json_values import Rows, check_cells

ATTRIBUTE: Final = re.compile(r"^@attribute\s+('[^']*'|\"[^\"]*\"|\S+)", re.MULTILINE | re.IGNORECASE)
DATA: Final = re.compile(r"^@data\s*$", re.MULTILINE | re.IGNORECASE)
FREQUENCY: Final = re.compile(r"^@frequency\s+(\S+)", re.MULTILINE | re.IGNORECASE)
STEPS: Final = {
    "yearly": "Y", "quarterly": "Q", "monthly": "M", "weekly": "W", "daily": "D", "hourly": "H", "minutely": "1min",
    "half_hourly": "30min", "10_minutes": "10min", "15_minutes": "15min", "4_seconds": "4s",
}  # fmt: skip
SCOPE: Final = re.compile(
    r"X,((?:CH\d|MATH),?(?:(?:CH\d|MATH),?)*?),?Start,Increment,?\r?\n(Sequence),[^\n]*?,(-?[\d.eE+-]+),([\d.eE+-]+),?\s*\n"
)
WRISTBAND: Final = re.compile(r"(1\d{9}(?:\.\d+)?)(?:, ?\1)*\r?\n(\d+(?:\.\d+)?)(?:, ?\2)*\r?\n(?=[-\d])")
SEISMIC: Final = re.compile(
    r"TIMESERIES (\S+), \d+ samples, ([\d.]+) sps, (\d{4}-\d\d-\d\dT[\d:.]+), (SLIST|TSPAIR), \w+, ?(\S*)[^\n]*\n"
)
# First line of NASA's files, which contains the number of lines of the header, and first lines of Igor's waves, which
# contain the names of the columns.
LINES: Final = re.compile(r"(\d{1,3})[, ]+1001\s*\n")
WAVES: Final = re.compile(r"IGOR\s+WAVES(?:/\w+)*\s+([^\n]+?)\s*\nBEGIN\s*\n([^A-Z]*)")
# Line with the name of a column and its number, such as `Sig2  Temperature (°C)` or `@ s1 legend "Temperature"`, and
# line with the name of the first column in files of Grace.
NAMED: Final = re.compile(r'\W*([A-Za-z]+)[ _]?(\d+)(?:\s+legend\b)?[\s:=]+"?([^"\n]*[^\W\d][^"\n]*?)"?\s*')
AXIS: Final = re.compile(r'(?m)^@\s+xaxis\s+label\s+"([^"]+)"')
MOST_ABOVE: Final = 500
# Longer lines are not searched for the name of a column, because the time of a match grows faster than the length.
LONGEST_NAMED: Final = 200
FEWEST_ROWS: Final = 4
FEWEST_NAMES: Final = 2
# Pair of a time and a value in the output of redis-cli.
PAIRS: Final = re.compile(r'(?m)^ *\d+\) +1\) (?:\(integer\) )?(\d+)\r?\n +2\) "?([^"\r\n]+)"?\r?$')
MOST_PER_SECOND: Final = 10_000.0
START: Final = "start_timestamp"


def read_series_lines(text: str) -> Rows | None:
    """Return the series of a .tsf file. Return None if the text is not such a file.

    Raises:
        ValueError: If a line has another number of attributes than the header, or the file has too many values.
    """
    parts = _parts(text)
    if parts is None or ":" not in parts[1].partition("\n")[0]:
        return None
    names, body = parts
    frequency = FREQUENCY.search(text)
    step = STEPS.get(frequency[1].lower() if frequency else "")
    rows, count = Rows(note="each line is a series"), 0
    for line in filter(None, map(str.strip, body.splitlines())):
        cells = line.split(":")
        if len(cells) != len(names) + 1:
            raise ValueError(
                f"the file declares {len(names)} attributes, but a line has {len(cells) - 1}: {line[:60]!r}"
            )
        values = cells[-1].split(",")
        check_cells(count := count + len(values))
        labels = dict(zip(names, cells, strict=False))
        start = re.sub(r"(\d\d)-(\d\d)-(\d\d)$", r"\1:\2:\3", labels.pop(START, ""))
        times = time_steps(start, step, len(values))
        rows.add(labels, **({} if times is None else {"time": times}), value=values)
    return rows


def as_csv(text: str) -> str | None:
    """Convert ARFF to CSV with a header, or return None if the text is not ARFF."""
    parts = _parts(text)
    return None if parts is None else f"{','.join(parts[0])}\n{parts[1]}"


def scope_as_csv(text: str) -> str | None:
    """Convert a recording of a Rigol oscilloscope, whose header contains the start time and the time step, to CSV.
    Return None for other text."""
    if (found := SCOPE.match(text)) is None:
        return None
    start, step = float(found[3]), float(found[4])
    rows = [line.split(",") for line in text[found.end() :].split()]
    count = found[1].count(",") + 1
    lines = [",".join([repr(start + int(row[0]) * step), *row[1 : 1 + count]]) for row in rows if row[0].isdigit()]
    return "\n".join([f"time,{found[1]}", *lines]) + "\n"


def wristband_as_csv(text: str) -> str | None:
    """Convert a file of an Empatica wristband, whose first lines contain the start time and the sampling rate, to CSV.
    Return None for other text."""
    if (found := WRISTBAND.match(text)) is None or not 0 < float(found[2]) <= MOST_PER_SECOND:
        return None
    start, rate = float(found[1]), float(found[2])
    rows = text[found.end() :].split()
    names = ",".join(f"column {k + 1}" for k in range(rows[0].count(",") + 1)) if rows else "column 1"
    return "\n".join([f"time,{names}", *(f"{start + k / rate:.6f},{row}" for k, row in enumerate(rows))]) + "\n"


def seismic_as_csv(text: str) -> str | None:
    """Convert a channel of a seismometer in EarthScope's text format to CSV with times, or return None for other
    text."""
    if (found := SEISMIC.match(text)) is None or not 0 < float(found[2]) <= MOST_PER_SECOND:
        return None
    name = found[5].strip() or "value"
    cells = text[found.end() :].split()
    if found[4] == "TSPAIR":
        return "\n".join([f"time,{name}", *map(",".join, zip(cells[::2], cells[1::2], strict=False))]) + "\n"
    begin = np.datetime64(found[3], "us")
    steps = np.rint(np.arange(len(cells)) * (1e6 / float(found[2]))).astype("timedelta64[us]")
    return "\n".join([f"time,{name}", *map(",".join, zip((begin + steps).astype(str), cells, strict=True))]) + "\n"


def counted_header_as_csv(text: str) -> str | None:
    """Convert a NASA file, which begins with the number of its header lines, or an Igor Pro text wave to CSV. Return
    None for other text."""
    if (waves := WAVES.match(text)) is not None:
        names, rows = re.split(r"[, ]+", waves[1]), (line.split() for line in waves[2].splitlines())
        return "\n".join([",".join(names), *(",".join(row) for row in rows if row)]) + "\n"
    if (found := LINES.match(text)) is None:
        return None
    lines = text.splitlines()[int(found[1]) - 1 :]
    return f"{lines[0].replace(',', ' (s),', 1)}\n" + "\n".join(lines[1:]) + "\n" if len(lines) > 1 else None


def numbered_names_as_csv(text: str) -> str | None:
    """Convert rows of numbers to CSV if the lines above them contain numbered column names. Return None for other
    text."""
    above: list[str] = []
    begin = 0
    for line in itertools.islice(re.finditer(r"(?m)^[^\n]*\n", text), MOST_ABOVE):
        if len(cells := line[0].split()) > 1 and is_data(cells):
            begin = line.start()
            break
        above.append(line[0])
    names: dict[str, dict[int, str]] = {}
    short = (line for line in above if len(line) <= LONGEST_NAMED)
    for named in filter(None, map(NAMED.fullmatch, short)):
        names.setdefault(named[1].lower(), {})[int(named[2])] = named[3]
    if not names:
        return None  # return before the rows are split, because other files may have millions of rows
    rows = [cells for line in text[begin:].splitlines() if (cells := line.split()) and line[0] not in "@&#"]
    if len(rows) < FEWEST_ROWS or len({*map(len, rows)}) > 1 or not all(map(is_data, rows[:FEWEST_ROWS])):
        return None
    for found in names.values():
        header = [found[number] for number in sorted(found)]
        axis = AXIS.search(text[:begin])
        if len(header) < FEWEST_NAMES and axis is None:
            continue
        if len(header) == len(rows[0]) - 1:
            header = [axis[1] if axis else "x", *header]
        if len(header) == len(rows[0]) and list(found) == list(range(min(found), min(found) + len(found))):
            return "\n".join("\t".join(cells) for cells in [header, *rows]) + "\n"
    return None


def pairs_as_csv(text: str) -> str | None:
    """Convert the output of redis-cli for a time series, which consists of pairs of a time and a value, to CSV. Return
    None for other text."""
    if PAIRS.match(text) is None:
        return None
    return "\n".join(["time,value", *map(",".join, PAIRS.findall(text))]) + "\n"


def _parts(text: str) -> tuple[list[str], str] | None:
    """Return the names of the attributes, and the lines below `@data`. Return None if the text has no attributes or no
    such lines."""
    found = DATA.search(text[:100_000])
    names = [name.strip("'\"") for name in ATTRIBUTE.findall(text[: found.start()])] if found else []
    return (names, text[found.end() :].lstrip("\r\n")) if found and names else None
