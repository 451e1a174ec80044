"""Run part of the tests, and only files that have not passed: `make test-all SHARD=1/4`, again after an interruption.

A passed file is recorded in build/test-all/COMMIT and not run again at that commit. With uncommitted changes every file
runs. The list is read once at the start, so that all workers leave out the same files.
"""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "test-all"
# Passes the list to the workers.
PASSED = "TESTS_PASSED_BEFORE"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shards", "part of the tests")
    group.addoption("--shard", default="1/1", type=shard, help="I/N: the I-th of N parts, by file")
    group.addoption("--unfinished", action="store_true", help="leave out the files that passed at this commit")


def shard(text: str) -> tuple[int, int]:
    """Parse I and N of I/N.

    Raises:
        ValueError
    """
    index, count = (int(part) for part in text.split("/"))
    if not 1 <= index <= count:
        raise ValueError(f"a shard is I/N with 1 <= I <= N, not {text}")
    return index, count


def is_in_shard(file: str, index: int, count: int) -> bool:
    """Return whether a file is in this shard. Each file is in one."""
    return zlib.crc32(file.encode()) % count == index - 1


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


def commit() -> str | None:
    """Return the current commit, or None with uncommitted changes or without a repository."""
    found = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    name = found.stdout.strip()
    return name if found.returncode == 0 and not name.endswith("-dirty") else None


class Journal:
    """Records passed files: all their tests ended and none failed.

    Args:
        path: File to which passed files are added, one per line. None records nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._open: Counter[str] = Counter()
        self._failed: set[str] = set()

    def expect(self, nodeids: Sequence[str]) -> None:
        """Count the tests once, because each worker collects the same tests."""
        if not self._open:
            self._open.update(map(file_of, nodeids))

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.expect(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.expect([item.nodeid for item in session.items])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        if report.failed:
            self._failed.add(file)
        if report.when != "teardown":
            return
        self._open[file] -= 1
        if not self._open[file] and file not in self._failed and self._path is not None:
            with self._path.open("a") as lines:
                lines.write(f"{file}\n")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    path = None
    os.environ[PASSED] = "[]"
    if config.getoption("unfinished") and (name := commit()) is not None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / name
        if path.exists():
            os.environ[PASSED] = json.dumps(sorted(set(path.read_text().split())))
    config.pluginmanager.register(Journal(path), "journal")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    passed, (index, count) = set(json.loads(os.environ[PASSED])), config.getoption("shard")
    left, out = [], []
    for item in items:
        file = file_of(item.nodeid)
        is_left = file not in passed and is_in_shard(file, index, count)
        (left if is_left else out).append(item)
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = left


def is_part(config: pytest.Config) -> bool:
    """Return whether files were left out."""
    is_resumed = config.getoption("unfinished", default=False) and os.environ[PASSED] != "[]"
    return is_resumed or config.getoption("shard", default=(1, 1)) != (1, 1)
