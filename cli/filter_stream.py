"""`rfa filter --stream`: filter a Parquet file with many series in parts, with bounded memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from rfa.data import ReadOptions
    from rfa.library.table import TableFilter

# Number of rows in a part. One part is read while another is filtered and a third is written.
PART_ROWS: Final = 262_144
MOST_THREADS: Final = 4


@dataclass(frozen=True)
class StreamOptions:
    """Values of the options --model, --alarm, --min and --max of `rfa filter --stream`."""

    model: str | None
    alarm: str | None
    minimum: float | None
    maximum: float | None


def stream_parquet(
    sources: Sequence[str], out: Path | None, reading: ReadOptions, options: StreamOptions, others: Sequence[str]
) -> None:
    """Filter the rows of a Parquet file, and write them with their estimates.

    Args:
        others: Names of options that were set and are not supported with --stream.

    Raises:
        ValueError: If an option is missing or not supported, or if the file cannot be read. The message names the
            option or file.
    """
    from rfa.library.table import FIELDS, TableColumns, TableFilter

    source = _check(sources, out, reading, others)
    from pyarrow import ArrowInvalid, parquet

    try:
        file = parquet.ParquetFile(source)
    except (OSError, ArrowInvalid) as error:
        raise ValueError(f"{source} is not a Parquet file: {str(error).splitlines()[0]}") from None
    columns = TableColumns(
        tuple(reading.by), str(reading.time), tuple(reading.columns), fields=FIELDS, tz=reading.zone
    ).of(file.schema_arrow)
    alarm = None if options.alarm is None else _rate(options.alarm)
    threads = min(os.cpu_count() or 1, MOST_THREADS)
    work = TableFilter(
        columns, model=options.model, alarm=alarm, minimum=options.minimum, maximum=options.maximum, threads=threads
    )
    assert out is not None  # ensured by `_check`
    write_filtered(file, work, out)
    parts = [f"{len(work.streams):,} series", f"{file.metadata.num_rows:,} rows"]
    parts += [f"{work.alarms:,} alarms"] if alarm is not None else []
    parts += (
        [f"{work.refused:,} rows have no estimates, because they are out of order or a cell is missing"]
        if work.refused
        else []
    )
    typer.echo(f"{', '.join(parts)} → {out}", err=True)


def write_filtered(file: Any, work: TableFilter, out: Path) -> None:
    """Write the rows of a Parquet file with their estimates. Reading, filtering and writing run at the same time."""
    from pyarrow import parquet

    batches = file.iter_batches(PART_ROWS)
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        following, target, written = reader.submit(next, batches, None), None, None
        try:
            while (batch := following.result()) is not None or target is None:
                following = reader.submit(next, batches, None)
                part = work.filter(file.schema_arrow.empty_table() if batch is None else batch)
                if target is None:
                    texts = [field.name for field in file.schema_arrow if field.name not in work.columns.values]
                    target = parquet.ParquetWriter(out, part.schema, use_dictionary=texts)
                if written is not None:
                    written.result()
                written = writer.submit(target.write_table, part)
            if written is not None:
                written.result()
        finally:
            if target is not None:
                target.close()


def _check(sources: Sequence[str], out: Path | None, reading: ReadOptions, others: Sequence[str]) -> str:
    """Check the options, and return the path of the Parquet file."""
    from rfa.cli.filter_output import check_output

    if reading.known or reading.start or reading.end or reading.every or reading.missing or reading.time_format:
        others = [*others, "--known, --from, --to, --every, --missing or --time-format"]
    if others:
        raise ValueError(f"--stream does not support {others[0]}; remove --stream, or the unsupported options")
    for option, value in (("--by", reading.by), ("--time", reading.time), ("--out", out)):
        if not value:
            raise ValueError(f"--stream requires {option}")
    if len(sources) != 1 or not Path(sources[0]).is_file():
        raise ValueError(f"--stream requires one Parquet file on this machine, got {', '.join(sources)}")
    assert out is not None
    check_output("--out", out, (".parquet",), sources)
    return sources[0]


def _rate(text: str) -> float | str:
    """Parse an alarm rate: a fraction of the rows, or a rate such as 1/day."""
    try:
        return float(text)
    except ValueError:
        return text
