"""Read InfluxDB's line protocol, Graphite's plain text and Prometheus' samples, which have one point per line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from rfa.data.json_values import Rows

# Line such as cpu,host=a usage=1.5,idle=3i 1710921600000000000. Quoted values are left out.
INFLUX: Final = re.compile(
    r'([^\s,="]+)((?:,[^\s,="]+=[^\s,="]+)*) ((?:[^\s,="]+=(?:"[^"]*"|[^\s,"]+)(?:,|(?= )))+)(?: (-?\d{9,19}))'
)
FIELD: Final = re.compile(r'([^\s,="]+)=(-?\d[\d.]*(?:[eE][+-]?\d+)?|[tTfF]\b|true|false)[iu]?(?=,|$)')
# Line such as servers.a.cpu 1.5 1710921600.
GRAPHITE: Final = re.compile(r"([\w;=%-]+(?:\.[\w;=%-]+)+) (-?\d[\d.]*(?:[eE][+-]?\d+)?|nan) (\d{9,10})")
# Line such as up{job="a"} 1 1710921600000 or {__name__="up", job="a"} 1 1710921600000.
PROMETHEUS: Final = re.compile(
    r'([A-Za-z_:][\w:]*)?\{((?:\w+="(?:[^"\\]|\\.)*"(?:, ?)?)*)\} (-?\d[\d.]*(?:[eE][+-]?\d+)?|NaN|[+-]Inf) (\d{10,13})'
)
LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SWITCHES: Final = {"t": 1.0, "true": 1.0, "f": 0.0, "false": 0.0}
PREVIEW: Final = 20
MOST_CHARACTERS: Final = 2**28

Point = tuple[tuple[tuple[str, str], ...], int, dict[str, float]]


def read_points(text: str) -> Rows | None:
    """Read the series of a file of points, or return None if the first lines are not points.

    Raises:
        ValueError: If a later line is not a point, or the file is too large.
    """
    lines = _lines(text)
    first = [line for (_, line), _ in zip(lines, range(PREVIEW), strict=False)]
    pattern = next((each for each in PARSERS if first and all(map(each.fullmatch, first))), None)
    if pattern is None:
        return None
    if len(text) > MOST_CHARACTERS:
        raise ValueError("line protocol may have at most 256 MiB; split it, or save it as CSV or Parquet")
    series: dict[Any, tuple[list[int], list[dict[str, float]]]] = {}
    for number, line in _lines(text):
        found = pattern.fullmatch(line)
        if found is None:
            raise ValueError(f"line {number} must be a point such as {first[0][:60]!r}, got {line[:60]!r}")
        labels, time, fields = PARSERS[pattern](found)
        times, values = series.setdefault(labels, ([], []))
        times.append(time)
        values.append(fields)
    rows = Rows(note="each line is a point")
    for labels, (times, values) in series.items():
        names = dict.fromkeys(name for fields in values for name in fields)
        rows.add(dict(labels), time=times, **{name: [fields.get(name) for fields in values] for name in names})
    return rows


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(re.finditer(r"[^\r\n]+", text), start=1):
        if not line[0].startswith("#") and line[0].strip():
            yield number, line[0].strip()


def _influx(found: re.Match[str]) -> Point:
    name, tags, fields, time = found.groups()
    labels = (("measurement", name), *(tuple(tag.split("=")) for tag in tags.split(",") if tag))
    numbers = {key: SWITCHES.get(value.lower(), value) for key, value in FIELD.findall(fields)}
    return labels, int(time), {key: float(value) for key, value in numbers.items()}


def _graphite(found: re.Match[str]) -> Point:
    return (("target", found[1]),), int(found[3]), {"value": float(found[2])}


def _prometheus(found: re.Match[str]) -> Point:
    name = (("__name__", found[1]),) if found[1] else ()
    return (*name, *LABEL.findall(found[2])), int(found[4]), {"value": float(found[3])}


PARSERS: Final[dict[re.Pattern[str], Callable[[re.Match[str]], Point]]] = {
    INFLUX: _influx, GRAPHITE: _graphite, PROMETHEUS: _prometheus,
}  # fmt: skip
