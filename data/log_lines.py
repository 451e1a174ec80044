"""Convert a log to series that count the lines of each kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from rfa.data.first_lines import begins_with, check_size
from rfa.data.json_values import Rows
from rfa.data.log_templates import Templates

# Time of a line in ISO 8601, in the formats of syslog and web servers, and as in "081109 203615".
_ISO: Final = r"(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
_SYSLOG: Final = r"(?P<syslog>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)"
_SHORT: Final = r"(?P<short>\d{6} \d{6})"
_WEB: Final = r"\S+ \S+ \S+ \[(?P<web>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]"
_STAMP: Final = re.compile(rf"\[?(?:{_ISO}(?: UTC| GMT)?|{_SYSLOG}|{_SHORT})(?:\]?\s|\](?=\[))|{_WEB}\s")
_FORMATS: Final = {"syslog": "%Y %b %d %H:%M:%S", "short": "%y%m%d %H%M%S", "web": "%d/%b/%Y:%H:%M:%S %z"}
# Pattern that distinguishes a log from a table: a level, or the end of the name of a program. Matching the whole name
# would take time that grows with the square of the line's length.
_LEVEL: Final = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SEVERE)\b|\S: ", re.I)
LOG_SHARE: Final = 0.8
# Maximum number of columns for the most frequent templates. The other lines are counted in one column.
MOST_COLUMNS: Final = 50
OTHERS: Final = "other lines"
NAME_CHARACTERS: Final = 80
# Time steps in seconds. The shortest step with at least one line on average is used.
STEPS: Final = (1, 10, 60, 600, 3_600, 86_400)
MOST_ROWS: Final = 100_000
MOST_EMPTY: Final = 1_000
NEW: Final = -1


def read_log(text: str) -> Rows | None:
    """Count the lines of a log by kind and time step, or return None if the text is not a log.

    Raises:
        ValueError: If the file is too large.
    """
    if not begins_with(text, is_log_line, LOG_SHARE):
        return None
    check_size(text, "a log may have at most 256 MiB; split the file")
    times, numbers, templates = _parsed(text)
    step = _step(times)
    rows = ((times - times.min()) // step).astype(int)
    counts = Counter(numbers)
    shown = [number for number, _ in counts.most_common(MOST_COLUMNS) if number]
    found = np.zeros((rows.max() + 1, len(shown) + 1), int)
    place = {number: column for column, number in enumerate(shown)}
    np.add.at(found, (rows, [place.get(number, len(shown)) for number in numbers]), 1)
    if (found == found[0]).all():
        return None  # each step has the same counts, so the file is not a log but a table
    begin = times.min() // step * step
    stamps = [datetime.fromtimestamp(begin + step * row, UTC).isoformat() for row in range(len(found))]
    columns: dict[str, Any] = {"time": stamps}
    for name, values in zip([*_names(templates, shown), OTHERS], found.T, strict=True):
        if name != OTHERS or values.any():
            columns[name] = values.tolist()
    kinds = "kind" if len(counts) == 1 else "kinds"
    result = Rows(note=f"{len(numbers)} log lines of {len(counts)} {kinds}, counted in steps of {step} s")
    result.add({}, **columns)
    return result


def is_log_line(line: str) -> bool:
    """Return whether a line begins with a time and contains a log level or the name of a program, or is a line of the
    access log of a web server."""
    stamp = _STAMP.match(line)
    return stamp is not None and (stamp["web"] is not None or _LEVEL.search(line, stamp.end()) is not None)


def stamp_of(line: str) -> tuple[float | None, str, bool]:
    """Return the time of a line, the rest of its text, and whether the time contains a year. The time is None if the
    line contains none."""
    stamp = _STAMP.match(line)
    if stamp is None or (time := _time(stamp)) is None:
        return None, line, True
    return time, line[stamp.end() :], stamp["syslog"] is None


def events_of(lines: Iterator[str]) -> Iterator[tuple[float | None, str]]:
    """Yield the time and the text of each line. Lines without a time, such as those of stack traces, are left out."""
    for line in lines:
        stamp = _STAMP.match(line)
        if stamp is not None:
            yield _time(stamp), line[stamp.end() :] if stamp["web"] is None else line[stamp.end() :].lstrip()


def count_events(lines: Iterator[str], templates: Templates, step: float) -> Iterator[dict[str, Any]]:
    """Yield observations for `rfa watch` from a log to which lines are being written.

    At the end of each step, there is an observation of the number of lines of each template, and of new templates.
    Steps without lines have the value 0, for up to `MOST_EMPTY` consecutive steps. Late lines are counted in the
    current step.

    Args:
        lines: Lines of the log.
        templates: Known templates, to which new ones are added.
        step: Length of a step in seconds.
    """
    names: dict[int, str] = {NEW: "new templates"}
    counts: Counter[int] = Counter()
    present: int | None = None
    for time, message in events_of(lines):
        if time is None:
            continue
        row = int(time // step)
        if present is not None and row > present:
            for ended in range(present, min(row, present + MOST_EMPTY)):
                yield from _observations(names, counts, (ended + 1) * step)
                counts.clear()
        present = row if present is None else max(present, row)
        number = templates.number(message)
        if number not in names:
            # The name of a series does not change when its template does.
            names[number] = templates.texts[number - 1][:NAME_CHARACTERS] if number else OTHERS
            counts[NEW] += 1
        counts[number] += 1
    if present is not None:
        yield from _observations(names, counts, (present + 1) * step)


def _observations(names: dict[int, str], counts: Counter[int], time: float) -> Iterator[dict[str, Any]]:
    for number, name in names.items():
        event = "new" if number == NEW else str(number)
        labels = {"__name__": "log_lines", "event": event, "template": name}
        yield {"labels": labels, "t": time, "value": counts[number]}


def _parsed(text: str) -> tuple[np.ndarray, list[int], Templates]:
    """Return the times of all lines with a time, `[N]` in seconds, their templates, and all templates."""
    templates, times, numbers = Templates(), [], []
    for time, message in events_of(iter(text.splitlines())):
        if time is not None:
            times.append(time)
            numbers.append(templates.number(message))
    return np.array(times), numbers, templates


def _time(stamp: re.Match[str]) -> float | None:
    """Return seconds since 1970, or None for a date that does not exist."""
    try:
        if stamp["iso"] is not None:
            moment = datetime.fromisoformat(stamp["iso"].replace(",", "."))
        else:
            name = str(stamp.lastgroup)
            # Times of syslog have no year. It is the current one, unless the time would then be in the future.
            year = f"{datetime.now(UTC).year} " if name == "syslog" else ""
            moment = datetime.strptime(year + stamp[name], _FORMATS[name])
            if name == "syslog" and moment > datetime.now(UTC).replace(tzinfo=None):
                moment = moment.replace(year=moment.year - 1)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _step(times: np.ndarray) -> int:
    span = float(times.max() - times.min()) + 1
    allowed = [step for step in STEPS if span / step < MOST_ROWS] or [int(span / MOST_ROWS) + 1]
    return next((step for step in allowed if len(times) >= span / step), allowed[-1])


def _names(templates: Templates, numbers: list[int]) -> list[str]:
    """Return short, unique texts of templates."""
    names: list[str] = []
    for number in numbers:
        text = templates.texts[number - 1][:NAME_CHARACTERS].strip() or f"template {number}"
        names.append(text if text not in (*names, "time", OTHERS) else f"{text} ({number})")
    return names
