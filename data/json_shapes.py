"""Convert JSON of monitoring and forecasting programs to labelled series. Each function returns None if the JSON has
another form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from rfa.data.json_values import MOST_CELLS, Rows

# Time steps of GluonTS, as a unit of NumPy and a number of such units.
STEPS: Final = {
    "s": ("s", 1), "min": ("m", 1), "t": ("m", 1), "h": ("h", 1), "d": ("D", 1), "b": ("D", 1), "w": ("D", 7),
    "m": ("M", 1), "q": ("M", 3), "y": ("M", 12), "a": ("M", 12),
}  # fmt: skip
# Names of the time dimension, if no dimension has the role of time.
TIME_DIMENSIONS: Final = ("time", "time_period", "tid", "year", "period", "jahr", "år")


def prometheus(document: Any) -> Rows | None:
    """Convert a reply of Prometheus' HTTP API, which is a matrix, a vector or a scalar. Return None for other JSON."""
    data = document.get("data", document) if isinstance(document, Mapping) else None
    if not isinstance(data, Mapping) or "resultType" not in data:
        return None
    result, rows = data.get("result", []), Rows()
    if data["resultType"] in ("scalar", "string"):
        result = [{"metric": {}, "value": result}]
    for series in result:
        pairs = series.get("values") or [series[name] for name in ("value",) if name in series]
        rows.add(series.get("metric", {}), time=[pair[0] for pair in pairs], value=[pair[1] for pair in pairs])
    return rows


def influx(document: Any) -> Rows | None:
    """Convert a reply of InfluxDB 1, or return None for other JSON."""
    if not isinstance(document, Mapping) or not _are_objects(document.get("results")):
        return None
    rows = Rows()
    for result in document["results"]:
        for series in result.get("series", []):
            labels = {"name": series.get("name", ""), **series.get("tags", {})}
            cells = zip(*series["values"], strict=True)
            rows.add(labels, **dict(zip(map(str, series["columns"]), cells, strict=True)))
    return rows if rows.labels else None


def graphite(document: Any) -> Rows | None:
    """Convert a reply of Graphite's render API or of Grafana's simple JSON, in which each value precedes its time.
    Return None for other JSON."""
    return _tagged(document, "target", "datapoints", lambda pairs: [(pair[1], pair[0]) for pair in pairs])


def opentsdb(document: Any) -> Rows | None:
    """Convert a reply of OpenTSDB to a query, or return None for other JSON."""

    def points(found: Any) -> list[tuple[int, Any]]:
        return [(int(pair[0]), pair[1]) for pair in (found.items() if isinstance(found, Mapping) else found)]

    return _tagged(document, "metric", "dps", points)


def _tagged(document: Any, label: str, field: str, points: Callable[[Any], list[tuple[Any, Any]]]) -> Rows | None:
    """Convert a list of series, each with a label, tags, and times with values in `field`. Return None for other
    JSON."""
    if not _are_objects(document) or not all(field in series for series in document):
        return None
    rows = Rows()
    for series in document:
        pairs = points(series[field])
        labels = {label: series.get(label, ""), **_labels(series.get("tags"))}
        rows.add(labels, time=[time for time, _ in pairs], value=[value for _, value in pairs])
    return rows


def rrdtool(document: Any) -> Rows | None:
    """Convert an export of rrdtool, which has a start, a step and a row of values for each time. Return None for other
    JSON."""
    meta = document.get("meta") if isinstance(document, Mapping) else None
    if not isinstance(meta, Mapping) or not {"start", "step", "legend"} <= meta.keys() or not document.get("data"):
        return None
    columns = dict(zip(meta["legend"], zip(*document["data"], strict=True), strict=True))
    rows = Rows()
    times = [int(meta["start"]) + k * int(meta["step"]) for k in range(len(document["data"]))]
    rows.add({}, time=times, **{str(name): list(values) for name, values in columns.items()})
    return rows


def json_stat(document: Any) -> Rows | None:
    """Convert a dataset in JSON-stat, a format of statistical offices, to a series for each combination of categories.
    Return None for other JSON."""
    inner = document.get("dataset", document) if isinstance(document, Mapping) else None
    if not isinstance(inner, Mapping) or not {"dimension", "value"} <= inner.keys():
        return None
    dimension = inner["dimension"]
    names, sizes = (inner.get(key, dimension.get(key)) for key in ("id", "size"))
    roles = inner.get("role", dimension.get("role", {})).get("time", [])
    time = next((name for name in names if name in roles or name.lower() in TIME_DIMENSIONS), None)
    if time is None or np.prod(sizes, dtype=float) > MOST_CELLS:
        return None
    codes = {name: _categories(dimension[name]["category"]) for name in names}
    cells, rows, axis = inner["value"], Rows(), names.index(time)
    others = [size for k, size in enumerate(sizes) if k != axis]
    places = np.moveaxis(np.arange(int(np.prod(sizes))).reshape(sizes), axis, -1)
    for index in np.ndindex(*others):
        labels = dict(zip([n for n in names if n != time],
                          (codes[n][k] for n, k in zip([n for n in names if n != time], index, strict=True)),
                          strict=True))  # fmt: skip
        ours = places[index].tolist()
        values = [cells.get(str(k)) for k in ours] if isinstance(cells, Mapping) else [cells[k] for k in ours]
        if any(value is not None for value in values):
            rows.add({n: label for n, label in labels.items() if len(codes[n]) > 1}, time=codes[time], value=values)
    return rows if rows.labels else None


def _categories(category: Mapping[str, Any]) -> list[str]:
    """Return the codes of a dimension in order."""
    index = category.get("index", category.get("label", {}))
    return sorted(index, key=index.__getitem__) if isinstance(index, Mapping) and "index" in category else list(index)


def gluonts(document: Any) -> Rows | None:
    """Convert series of GluonTS, which have a start, a step and a list of values. Without a step, rows are numbered.
    Return None for other JSON."""
    listed = document if isinstance(document, list) else [document]
    if not _are_objects(listed) or not all(isinstance(series.get("target"), list) for series in listed):
        return None
    rows = Rows(note="the values of 'target' are read as the rows of a series")
    for number, series in enumerate(listed):
        labels = {"item_id": series.get("item_id", series.get("id", str(number)))}
        times = time_steps(series.get("start"), series.get("freq"), len(series["target"]))
        rows.add(labels, **({} if times is None else {"time": times}), target=series["target"])
    return rows


def home_assistant(document: Any) -> Rows | None:
    """Convert Home Assistant's history, with a list for each entity, or its statistics, with a list for each name.
    Return None for other JSON."""
    rows = Rows()
    if isinstance(document, list) and document and all(_are_objects(states) for states in document):
        for states in document:
            name = next((state["entity_id"] for state in states if "entity_id" in state), None)
            if name is None or not all("state" in state for state in states):
                return None
            times = [state.get("last_changed", state.get("last_updated")) for state in states]
            rows.add({"entity_id": name}, last_changed=times, state=[state["state"] for state in states])
        return rows
    if not isinstance(document, Mapping) or not document or not all(_are_objects(v) for v in document.values()):
        return None
    if not all("start" in row for row in document.values() for row in row[:1]):
        return None
    for name, states in document.items():
        fields = dict.fromkeys(key for state in states for key in state if key != "end")
        rows.add({"statistic_id": name}, **{key: [state.get(key) for state in states] for key in fields})
    return rows


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _labels(tags: Any) -> dict[str, Any]:
    return {str(name): tag for name, tag in tags.items()} if isinstance(tags, Mapping) else {}


def time_steps(start: Any, step: Any, count: int) -> list[str] | None:
    """Return the times of `count` rows, from a start and a step such as 15min or D. Return None if the start or the
    step is unknown."""
    found = re.fullmatch(r"(\d*)(min|[a-zA-Z])(?:[ES]|-\w+)?", str(step or ""))
    if found is None or found[2].lower() not in STEPS or not isinstance(start, str) or count > MOST_CELLS:
        return None
    unit, size = STEPS[found[2].lower()]
    steps = np.arange(count) * (size * int(found[1] or 1))
    try:
        begin = np.datetime64(start.replace(" ", "T").removesuffix("Z")).astype(f"datetime64[{unit}]")
    except ValueError:
        return None
    times = (begin + steps.astype(f"timedelta64[{unit}]")).astype("datetime64[s]")
    return [str(time) for time in times]
