"""`rfa inspect`: show how files are read, without filtering them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rfa.cli.console import print_table
from rfa.cli.filter_options import Sources
from rfa.cli.options import FileOptions, JsonFlag, reads_files

if TYPE_CHECKING:
    from rfa.data import Frame, ReadOptions, Series
    from rfa.data.sampling import TableSample

# Maximum number of series that are printed; --json prints all of them.
SHOWN = 8
# Steps that are longer than the usual step by this factor are gaps.
GAP = 1.5
# Number of last rows that are searched for seasons.
SEARCHED = 20_000


@reads_files
def inspect_files(data: Sources, *, as_json: JsonFlag = False, files: FileOptions) -> None:
    """Show how files are read: time column, time step, gaps, columns, missing values, seasons, and notes on automatic
    decisions."""
    if len(data) == 1:
        document = _inspect(data[0], files)
        print_table(document, _lines(document), as_json)
        return
    documents: dict[str, dict[str, Any]] = {}
    for file in data:
        try:
            documents[file] = _inspect(file, files)
        except ValueError as error:
            documents[file] = {"error": str(error)}
    print_table({"files": documents}, _lines_of_files(documents), as_json)
    if all("error" in document for document in documents.values()):
        raise ValueError(f"none of the {len(documents)} files could be read")


def _inspect(file: str, files: FileOptions) -> dict[str, Any]:
    from rfa.data import key_name, read_all
    from rfa.data.sampling import sample_table

    failed: dict[str, str] = {}
    sample = sample_table(file)
    table = files.load(file) if sample is None else sample.table
    frame = read_all(table, files.reading, lambda key, error: failed.update({key_name(key): str(error)}))
    return describe(frame, files.reading, failed, sample)


def describe(
    frame: Frame, reading: ReadOptions, failed: Mapping[str, str], sample: TableSample | None = None
) -> dict[str, Any]:
    """Describe the series that were read from a file, as JSON types.

    Args:
        failed: Mapping from names of series that could not be read to error messages.
        sample: Sample of a large file that was read instead of the file. Counts are then estimates.

    Raises:
        ValueError: If no series could be read.
    """
    from rfa.data import key_name

    share, breaks = (1.0, 0) if sample is None else (sample.share, sample.breaks)
    series = list(frame.series.values())
    if not series:
        raise ValueError(f"no series could be read; the first error is: {next(iter(failed.values()))}")
    first = series[0]
    return {
        "clock": list(first.clock_columns) or None,
        "zone": first.zone if first.is_dated else None,
        "by": list(frame.by),
        "read_share": share,
        "notes": list(dict.fromkeys(note for one in series for note in one.notes)),
        "series": [
            {"name": key_name(key), **_describe_series(one, share, breaks)} for key, one in frame.series.items()
        ],
        "failed": dict(failed),
    }


def _describe_series(series: Series, share: float, breaks: int) -> dict[str, Any]:
    import numpy as np

    from rfa.data import usual_step

    step, lags = usual_step(series), np.diff(series.times)
    first, last = (str(time).removesuffix(".000000") for time in series.moments(series.times[[0, -1]]))
    gaps = int((lags > GAP * step).sum()) if step else 0
    return {
        "rows": _estimate(len(series.times), share),
        "first": first,
        "last": last,
        "step": step,
        "gaps": _estimate(max(0, gaps - breaks), share),
        "columns": [
            {"name": one.names[0], **_describe_values(one.values[:, 0], share), "seasons": _seasons(one)}
            for one in series.by_column()
        ],
    }


def _estimate(count: int, share: float) -> int:
    """Return a count for the whole file. It is exact if the whole file was read. Otherwise, it is an estimate, rounded
    to three digits."""
    return count if share == 1.0 else int(float(f"{count / share:.3g}"))


def _describe_values(values: Any, share: float) -> dict[str, Any]:
    import numpy as np

    seen = values[~np.isnan(values)]
    ends = {"least": float(seen.min()), "most": float(seen.max())} if len(seen) else {"least": None, "most": None}
    return {"values": _estimate(len(seen), share), "missing": _estimate(len(values) - len(seen), share), **ends}


def _seasons(series: Series) -> list[float]:
    """Return the periods of the seasons of a series in rows."""
    from rfa.fitting.seasons import candidate_periods

    found = candidate_periods(series.times[-SEARCHED:], series.values[-SEARCHED:, 0])
    return [round(period, 2) for period in found]


def _count(count: int, share: float) -> str:
    return f"{'' if share == 1.0 or not count else 'about '}{count:,}"


def _lines_of_files(documents: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for file, document in documents.items():
        yield f"file     {file}"
        yield from [f"failed   {document['error']}"] if "error" in document else _lines(document)


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    clock = document["clock"]
    zone = f" ({document['zone']})" if document["zone"] else ""
    share = document["read_share"]
    if share < 1.0:
        yield f"sample   {100 * share:.2g} % of the file, from its beginning, middle and end; counts are estimates"
    yield f"clock    {' + '.join(clock) + zone if clock else 'none; rows are numbered'}"
    if document["by"]:
        yield f"series   {len(document['series'])}, by {' and '.join(document['by'])}"
    for series in document["series"][:SHOWN]:
        name = f"{series['name']}: " if series["name"] else ""
        yield (
            f"rows     {name}{_count(series['rows'], share)}, {series['first']} to {series['last']}, "
            f"{series['step']:,.6g} s apart, {_count(series['gaps'], share)} gaps"
        )
        for column in series["columns"]:
            seasons = column["seasons"]
            found = "" if not seasons else f", seasons of {', '.join(f'{period:g}' for period in seasons)} rows"
            ends = "" if column["least"] is None else f" from {column['least']:.6g} to {column['most']:.6g}"
            values, missing = (_count(column[part], share) for part in ("values", "missing"))
            yield f"column   {column['name']}: {values} values{ends}, {missing} missing{found}"
    if (more := len(document["series"]) - SHOWN) > 0:
        yield f"and {more} more series; use --json to see all"
    yield from (f"note     {note}" for note in document["notes"])
    yield from (f"failed   {name}: {reason}" for name, reason in document["failed"].items())
