"""A streaming query over the files of FOLDER/in; with a batch number it kills Spark in the middle of that batch.

python -m tests.library.engines.spark_stream FOLDER [BATCH]
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rfa.library.spark import SeriesProcessor
from tests.library.engines.readings import HOW
from tests.library.engines.spark_session import spark_session


class Killing(SeriesProcessor):
    """Kills Spark and its parent after the second key of a batch that has a time of the marked file."""

    marked, process, keys = -1.0, 0, 0

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        given = list(rows)
        yield from super().handleInputRows(key, iter(given), timerValues)
        if self.marked >= 0 and max(row["t"] for row in given) >= self.marked:
            self.keys += 1
            if self.keys == 2:
                os.killpg(self.process, signal.SIGKILL)


def main(folder: Path, marked: float) -> None:
    """Run the query until every file that is there was read."""
    spark = spark_session(folder)
    schema = spark.read.parquet(str(folder / "in")).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    processor = Killing(schema, **HOW)
    processor.marked, processor.process = marked, os.getpgid(0)
    query = (
        rows.groupBy("room")
        .transformWithState(processor, processor.output, outputMode="Append", timeMode="None")
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.read.parquet(str(folder / "out")).toPandas().to_parquet(folder / "found.parquet")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
