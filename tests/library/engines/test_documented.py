"""The examples of the guide to engines run, and give the numbers of `rfa.filter_table`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyarrow import dataset, parquet

import rfa
from tests.bytecode import with_bytecode
from tests.library.engines.readings import ROOT, assert_same, readings
from tests.readme_blocks import parse_blocks

BLOCKS = {
    name: block.body
    for block in parse_blocks((ROOT / "docs" / "guides" / "engines.md").read_text(encoding="utf-8"))
    for name in ("mapInArrow", "transformWithState", "map_batches")
    if f".{name}(" in block.body
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "package"), list(zip(BLOCKS, ("pyspark", "pyspark", "ray"), strict=True)))
def test_an_example_of_the_guide(name: str, package: str, tmp_path: Path) -> None:
    if find_spec(package) is None or (package == "pyspark" and shutil.which("java") is None):
        pytest.skip(f"{package} is not installed")
    table = readings()
    parquet.write_table(table, tmp_path / "in.parquet")
    (tmp_path / "in").mkdir()
    for k in range(3):
        parquet.write_table(table[200 * k : 200 * (k + 1)], tmp_path / "in" / f"{k}.parquet")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {
        **with_bytecode(tmp_path / "bytecode"),
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    env["RAY_worker_niceness"] = "0"
    run = subprocess.run([sys.executable, "-c", BLOCKS[name]], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    found = dataset.dataset(tmp_path / "out.parquet" if name != "transformWithState" else tmp_path / "out")
    expected = rfa.filter_table(table, key="room", time="t", model="auto", alarm=0.001)
    assert_same(found.to_table(), expected)
