"""`rfa inspect`: how a file would be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rfa.cli.console import print_table
from rfa.cli.options import JsonFlag, reads_files

if TYPE_CHECKING:
    from rfa.data import Frame, ReadOptions, Series

# Series that are printed; --json has all.
SHOWN = 8
# Steps longer than the usual one by this factor are gaps.
GAP = 1.5
# Last rows that are searched for seasons.
SEARCHED = 20_000

Source = Annotated[str, typer.Argument(help="A file for `rfa filter`, or - for standard input.", metavar="FILE")]


@reads_files
def inspect_file(
    data: Source, *, as_json: JsonFlag = False, reading: ReadOptions, source: dict[str, str | None]
) -> None:
    """Show how a file is read: clock, step, gaps, columns, missing values, seasons, and what was decided."""
    from rfa.data import key_name, load_table, read_all

    failed: dict[str, str] = {}
    frame = read_all(load_table(data, **source), reading, lambda key, error: failed.update({key_name(key): str(error)}))
    print_table(document := describe(frame, reading, failed), _lines(document), as_json)


def describe(frame: Frame, reading: ReadOptions, failed: Mapping[str, str]) -> dict[str, Any]:
    """What was read, as JSON types."""
    from rfa.data import key_name

    series = list(frame.series.values())
    if not series:
        raise ValueError(f"no series can be read; the first: {next(iter(failed.values()))}")
    first = series[0]
    return {
        "clock": list(first.clock_columns) or None,
        "zone": reading.zone if first.is_dated else None,
        "by": list(frame.by),
        "notes": list(dict.fromkeys(note for one in series for note in one.notes)),
        "series": [{"name": key_name(key), **_describe_series(one)} for key, one in frame.series.items()],
        "failed": dict(failed),
    }


def _describe_series(series: Series) -> dict[str, Any]:
    import numpy as np

    from rfa.data import usual_step

    step, lags = usual_step(series), np.diff(series.times)
    first, last = (str(time).removesuffix(".000000") for time in series.moments(series.times[[0, -1]]))
    return {
        "rows": len(series.times),
        "first": first,
        "last": last,
        "step": step,
        "gaps": int((lags > GAP * step).sum()) if step else 0,
        "columns": [
            {"name": one.names[0], **_describe_values(one.values[:, 0]), "seasons": _seasons(one)}
            for one in series.by_column()
        ],
    }


def _describe_values(values: Any) -> dict[str, Any]:
    import numpy as np

    seen = values[~np.isnan(values)]
    ends = {"least": float(seen.min()), "most": float(seen.max())} if len(seen) else {"least": None, "most": None}
    return {"values": len(seen), "missing": len(values) - len(seen), **ends}


def _seasons(series: Series) -> list[float] | None:
    """Periods in rows; None without scipy."""
    try:
        from rfa.fitting.seasons import candidate_periods
    except ModuleNotFoundError:
        return None
    found = candidate_periods(series.times[-SEARCHED:], series.values[-SEARCHED:, 0])
    return [round(period, 2) for period in found]


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    clock = document["clock"]
    zone = f" ({document['zone']})" if document["zone"] else ""
    yield f"clock    {' + '.join(clock) + zone if clock else 'none: rows are counted'}"
    if document["by"]:
        yield f"series   {len(document['series'])}, by {' and '.join(document['by'])}"
    for series in document["series"][:SHOWN]:
        name = f"{series['name']}: " if series["name"] else ""
        yield (
            f"rows     {name}{series['rows']:,}, {series['first']} to {series['last']}, "
            f"{series['step']:,.6g} s apart, {series['gaps']} gaps"
        )
        for column in series["columns"]:
            seasons = column["seasons"]
            found = "" if not seasons else f", seasons of {', '.join(f'{period:g}' for period in seasons)} rows"
            ends = "" if column["least"] is None else f" from {column['least']:.6g} to {column['most']:.6g}"
            yield f"column   {column['name']}: {column['values']:,} values{ends}, {column['missing']} missing{found}"
    if (more := len(document["series"]) - SHOWN) > 0:
        yield f"         and {more} more series; --json has all"
    yield from (f"note     {note}" for note in document["notes"])
    yield from (f"failed   {name}: {reason}" for name, reason in document["failed"].items())
