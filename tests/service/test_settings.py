"""What the server finds out about the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.machine import available_cores

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("100000 100000\n", 1),
        ("150000 100000\n", min(2, CORES)),
        ("5000 100000\n", 1),
        (f"{CORES + 7}00000 100000\n", CORES),
        ("max 100000\n", CORES),
        ("nonsense", CORES),
    ],
)
def test_a_quota_of_time_bounds_the_cores(tmp_path: Path, content: str, cores: int) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(content)
    assert available_cores(quota) == cores


def test_without_a_quota_the_affinity_says(tmp_path: Path) -> None:
    assert available_cores(tmp_path / "absent") == CORES
