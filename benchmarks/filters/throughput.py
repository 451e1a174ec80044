"""Processor time of the server per observation of a recorded series, and wall-clock time of `rfa filter`.

    python -m rfa.benchmarks.filters.throughput

Rows, columns and an Arrow stream of the same 20,000 observations must have equal replies. Then MANY series are posted
in one Arrow stream while a live stream measures its own response time.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil  # type: ignore[import-untyped]
import pyarrow as pa
from tqdm import tqdm
from websockets.sync.client import connect

from rfa.benchmarks.command import finish, parser, post
from rfa.benchmarks.load.server import started
from rfa.measured import origin
from rfa.runtime.bundle.locate import BUNDLE_ROOT

COUNT, ROWS, ROUNDS, CLI_ROUNDS = 20_000, 200_000, 9, 3
SIZES = {"auto": 1, "linear": 2}
FIELDS = ("mean", "std", "interval", "anomaly")
ARROW = "application/vnd.apache.arrow.stream"
MANY, MANY_ROUNDS, COMPARED = 1_000, 5, 10
LIVE_RATE, LIVE_SECONDS = 100, 5.0


def series(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return times and values of a noisy walk, with as many digits as a file would have."""
    rng = np.random.default_rng(size)
    return np.round(0.1 * np.arange(count), 1), np.round(rng.normal(size=(count, size)).cumsum(axis=0), 3)


def processor_seconds(root: int) -> float:
    """Return the processor time of a process and all its children, in seconds."""
    process = psutil.Process(root)
    total = 0
    for one in [process, *process.children(recursive=True)]:
        for thread in Path(f"/proc/{one.pid}/task").iterdir():
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def requests(model: str) -> dict[str, Callable[[str], bytes]]:
    """Return functions that send the same series as rows, columns or Arrow to the server at a URL."""
    times, values = series(SIZES[model], COUNT)
    options = {"model": model, "levels": [0.9], "fields": FIELDS}
    names = [f"y{i}" for i in range(SIZES[model])]
    rows = orjson.dumps({**options, "times": times.tolist(), "observations": values.tolist()})
    columns = {name: column.tolist() for name, column in zip(names, values.T, strict=True)}
    in_columns = orjson.dumps({**options, "times": times.tolist(), "values": columns})
    table = pa.table({"t": times, **dict(zip(names, values.T, strict=True))})
    in_arrow = as_stream(table)
    query = f"/filter?model={model}&levels=0.9&fields={','.join(FIELDS)}"
    return {
        "rows": lambda url: post(f"{url}/filter", rows, "application/json"),
        "columns": lambda url: post(f"{url}/filter", in_columns, "application/json"),
        "arrow": lambda url: post(url + query, in_arrow, ARROW),
    }


def means(form: str, answer: bytes) -> list[float]:
    """Return the first component's means, of an answer in this form."""
    if form == "rows":
        return [step["mean"][0] for step in orjson.loads(answer)["steps"]]
    if form == "columns":
        found: list[float] = orjson.loads(answer)["columns"]["mean.y0"]
        return found
    column: list[float] = pa.ipc.open_stream(answer).read_all()["mean.y0"].to_pylist()
    return column


def served() -> dict[str, Any]:
    """Return microseconds of processor time per observation, by model and form."""
    figures: dict[str, Any] = {}
    bundles = [BUNDLE_ROOT / "linear"]
    with started(bundles, {"max_observations": COUNT}) as target, tqdm(total=ROUNDS * 6, disable=None) as bar:
        assert target.pid is not None
        for model in SIZES:
            forms = requests(model)
            spent: dict[str, list[float]] = {}
            result = {form: means(form, ask(target.url)) for form, ask in forms.items()}
            if not result["rows"] == result["columns"] == result["arrow"] or len(result["rows"]) != COUNT:
                raise ValueError(f"the forms differ in their numbers of {model}")
            for _ in range(ROUNDS):
                for form, ask in forms.items():
                    before = processor_seconds(target.pid)
                    ask(target.url)
                    time.sleep(0.2)  # work after the last byte counts
                    spent.setdefault(form, []).append(1e6 * (processor_seconds(target.pid) - before) / COUNT)
                    bar.update()
            figures[model] = {form: round(statistics.median(found), 2) for form, found in spent.items()}
    return figures


def command() -> dict[str, float]:
    """Return seconds of `rfa filter` on ROWS rows, by model."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model, size in SIZES.items():
            data, out = Path(folder) / f"{model}.csv", Path(folder) / "out.csv"
            times, values = series(size, ROWS)
            header = ",".join(["t", *(f"y{i}" for i in range(size))])
            np.savetxt(data, np.column_stack([times, values]), "%.10g", ",", header=header, comments="")
            arguments = ["filter", str(data), "--bundle", model, "--out", str(out)]
            spent = []
            for _ in range(CLI_ROUNDS):
                begun = time.perf_counter()
                subprocess.run([sys.executable, "-m", "rfa", *arguments], check=True, capture_output=True)
                spent.append(time.perf_counter() - begun)
            figures[model] = round(statistics.median(spent), 2)
    return figures


def long_table(order: str) -> tuple[pa.Table, np.ndarray]:
    """Return MANY series of MANY observations as a table in long format, and their values `[series, observations]`."""
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=(MANY, MANY)).cumsum(axis=1), 3)
    names = np.repeat([f"sensor-{k:04d}" for k in range(MANY)], MANY)
    table = pa.table({"sensor": names, "time": np.tile(60.0 * np.arange(MANY), MANY), "y": values.reshape(-1)})
    return (table.sort_by("time") if order == "by time" else table), values


def as_stream(table: pa.Table) -> bytes:
    """Return an Arrow stream of a table."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def many() -> dict[str, Any]:
    """Return the time of a request of MANY series, by the order of its rows, and its effect on a live stream."""
    figures: dict[str, Any] = {"series": MANY, "observations": MANY}
    query = f"/filter?levels=0.9&fields={','.join(FIELDS[:1] + FIELDS[2:])}"
    with started([BUNDLE_ROOT / "linear"], {"processes": 1}) as target:
        assert target.pid is not None
        for order in ("by series", "by time"):
            table, values = long_table(order)
            body, seconds, spent = as_stream(table), [], []
            for _ in range(MANY_ROUNDS):
                before, begun = processor_seconds(target.pid), time.perf_counter()
                answer = post(f"{target.url}{query}&by=sensor", body, ARROW)
                seconds.append(time.perf_counter() - begun)
                spent.append(processor_seconds(target.pid) - before)
            check_many(target.url + query, pa.ipc.open_stream(answer).read_all(), values)
            figures[order] = {
                "seconds": round(statistics.median(seconds), 2),
                "fastest": round(min(seconds), 2),
                "processor_seconds": round(statistics.median(spent), 2),
            }
        figures["live_ms"] = {"alone": live(target.url, lambda: time.sleep(LIVE_SECONDS))}
        figures["live_ms"]["beside"] = live(target.url, lambda: post(f"{target.url}{query}&by=sensor", body, ARROW))
    return figures


def check_many(url: str, result: pa.Table, values: np.ndarray) -> None:
    """Compare some series with their results alone."""
    if len(result) != MANY * MANY or result["error"].null_count != len(result):
        raise ValueError(f"{len(result)} rows of {MANY * MANY}, or errors among them")
    for k in range(0, MANY, MANY // COMPARED):
        one = as_stream(pa.table({"time": 60.0 * np.arange(MANY), "y": values[k]}))
        alone = pa.ipc.open_stream(post(url, one, ARROW)).read_all()
        among = result.filter(pa.compute.equal(result["sensor"], f"sensor-{k:04d}"))
        if not among.select(alone.column_names).equals(alone):
            raise ValueError(f"series {k} has other numbers among many than alone")


def live(url: str, while_this: Callable[[], object]) -> dict[str, float]:
    """Return milliseconds from observation to answer on a live stream until `done`."""
    with ThreadPoolExecutor(1) as thread, connect(f"{url.replace('http', 'ws', 1)}/filter/stream") as socket:
        socket.send("{}")
        socket.recv()
        done, waits = thread.submit(while_this), []
        while not done.done():
            begun = time.perf_counter()
            socket.send(b'{"y":[1.0]}'.decode())
            socket.recv()
            waits.append(1000 * (time.perf_counter() - begun))
            time.sleep(1 / LIVE_RATE)
        done.result()
    return {"p50": round(float(np.quantile(waits, 0.5)), 2), "p99": round(float(np.quantile(waits, 0.99)), 2)}


def main() -> None:
    """Run, print and write the file."""
    given = parser(__doc__, "series").parse_args()
    document = {
        **origin("python -m rfa.benchmarks.filters.throughput"),
        "observations": COUNT,
        "microseconds": served(),
        "command_rows": ROWS,
        "command_seconds": command(),
        "many": many(),
    }
    finish("series", given.out, document)


if __name__ == "__main__":
    main()
