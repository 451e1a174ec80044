"""A stream on Spark that is killed within a micro-batch gives the numbers of `rfa.filter_table`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
from pyarrow import parquet

import rfa
from tests.bytecode import with_bytecode
from tests.library.engines.readings import HOW, ROOT, assert_same, readings

FILES = 4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("pyspark") is None or which("java") is None, reason="pyspark or Java is not installed")
def test_a_stream_that_is_killed_in_a_batch_counts_nothing_twice(tmp_path: Path) -> None:
    table = readings()
    (tmp_path / "in").mkdir()
    for k in range(FILES):
        part = table[k * len(table) // FILES : (k + 1) * len(table) // FILES]
        path = tmp_path / "in" / f"{k}.parquet"
        parquet.write_table(part, path)
        os.utime(path, (1_700_000_000 + k, 1_700_000_000 + k))  # Spark reads them by age
    marked = table["t"][2 * len(table) // FILES].as_py()  # in the third batch
    assert _run(tmp_path, marked) == -signal.SIGKILL
    assert not (tmp_path / "found.parquet").exists() and len(list((tmp_path / "checkpoint" / "commits").glob("?"))) == 2
    assert _run(tmp_path, -1.0) == 0
    assert_same(parquet.read_table(tmp_path / "found.parquet"), rfa.filter_table(table, **HOW))


def _run(folder: Path, marked: float) -> int:
    command = [sys.executable, "-m", "tests.library.engines.spark_stream", str(folder), str(marked)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (folder / "log.txt").open("a") as log:
        env = {**with_bytecode(folder / "bytecode"), "PYTHONPATH": path}
        found = subprocess.run(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)
    return found.returncode
