"""Filter rows of many series from one Parquet file into another.

    python -m rfa.benchmarks.table --rows 10000000 --series 10000

Runs `rfa filter --stream` on a generated file, whose rows are in the order of time: 60 s apart, with a daily cycle.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from rfa.benchmarks.command import finish, parser
from rfa.measured import origin

PART = 1_000_000


def write(path: Path, rows: int, series: int) -> None:
    """Write a file of this many rows."""
    draw, writer = np.random.default_rng(0), None
    names = pa.array([f"sensor-{k:07d}" for k in range(series)])
    for begin in range(0, rows, PART):
        row = np.arange(begin, min(begin + PART, rows))
        times = 1_700_000_000 + 60 * (row // series)
        table = pa.table(
            {
                "sensor": names.take(pa.array(row % series)),
                "time": pa.array(1_000_000 * times).cast(pa.timestamp("us", "UTC")),
                "celsius": 20 + 5 * np.sin(2 * np.pi * times / 86_400) + draw.normal(size=len(row)),
            }
        )
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def main() -> None:
    """Measure, and write the result."""
    options = parser(__doc__, "table")
    options.add_argument("--rows", type=int, default=10_000_000)
    options.add_argument("--series", type=int, default=10_000)
    options.add_argument("--model", default="auto")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "in.parquet"), Path(folder, "out.parquet")
        write(source, chosen.rows, chosen.series)
        load, started = os.getloadavg()[0], time.perf_counter()
        # The command loads the kernels and the package, too.
        run = [sys.executable, "-c", "from rfa.cli.main import app; app()", "filter", str(source), "--stream", "--by"]
        subprocess.run([*run, "sensor", "--time", "time", "--model", chosen.model, "--out", str(out)], check=True)
        seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        sizes = {path.stem: path.stat().st_size for path in (source, out)}
    cpu = used.ru_utime + used.ru_stime
    document = {
        **origin(f"python -m rfa.benchmarks.table --rows {chosen.rows} --series {chosen.series}"),
        "rows": chosen.rows,
        "series": chosen.series,
        "model": chosen.model,
        "load": round(load, 1),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "cpu_microseconds_per_row": round(1e6 * cpu / chosen.rows, 2),
        "peak_gigabytes": round(1024e-9 * used.ru_maxrss, 2),
        "bytes": sizes,
    }
    finish("table", chosen.out, document)


if __name__ == "__main__":
    main()
