"""`kill -9` of a watch at any point loses no observation, and counts none twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_watches_filter_each_observation_once(kills: int, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.library.watch.kills", str(kills), str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    # How many rows came before the kills depends on the speed of the machine.
    assert result["killed"] == kills and result["rows"] >= 12
    assert (result["lost"], result["different"], result["wrong"]) == (0, 0, 0)
