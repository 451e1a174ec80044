"""The summary at the end of a run of all tests, on a small suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.whole import layer_lines, reached

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent
SUITE = """
import pytest

@pytest.mark.parametrize("case", range(3))
def test_here(case):
    pytest.skip("no such machine")

@pytest.mark.skipif(True, reason="too old")
def test_there():
    assert False

@pytest.mark.xfail(reason="known")
def test_known():
    assert False

def test_passes():
    assert True
"""
LEFT_OUT = 'import pytest\npytest.importorskip("no_such_module", reason="no such package")\n'
SUMMARY = {"num_statements": 4, "covered_lines": 3, "num_branches": 2, "covered_branches": 1}
REPORT = {
    "files": {
        "model/a.py": {"summary": SUMMARY},
        "model/deep/b.py": {"summary": SUMMARY},
        "cli/c.py": {"summary": {**SUMMARY, "num_branches": 0, "covered_branches": 0}},
    }
}
LAYERS = {
    "cli": {"lines": 4, "lines_reached": 3, "branches": 0, "branches_reached": 0},
    "model": {"lines": 8, "lines_reached": 6, "branches": 4, "branches_reached": 2},
}


@pytest.fixture
def suite(pytester: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with a small suite that finds the plugin."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\ntestpaths = .")
    pytester.makepyfile(test_suite=SUITE, test_left_out=LEFT_OUT)
    (pytester.path / "coverage.json").write_text(json.dumps(REPORT))
    return pytester


def run(suite: Any, *more: str) -> Any:
    options = ("-p", "tests.whole", "--whole-coverage=coverage.json", "--whole-result=result.json")
    return suite.runpytest_subprocess(*options, *more)


def test_layers_are_added_up() -> None:
    assert reached(REPORT) == LAYERS
    lines = [line.split() for line in layer_lines(LAYERS)]
    assert lines[1:] == [
        ["cli", "75.0", "%", "none"],
        ["model", "75.0", "%", "50.0", "%"],
        ["all", "75.0", "%", "50.0", "%"],
    ]


@pytest.mark.parametrize("processes", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["alone", "shared"])
def test_every_reason_is_reported_with_its_count(suite: Any, processes: tuple[str, ...]) -> None:
    run(suite, *processes).stdout.fnmatch_lines(
        ["5 skipped", "     3  no such machine", "     1  no such package", "     1  too old", "all * 75.0 % * 50.0 %"]
    )
    found = json.loads((suite.path / "result.json").read_text())
    assert found["tests"] == {"passed": 1, "skipped": 5, "xfailed": 1}
    assert found["skips"] == {"no such machine": 3, "no such package": 1, "too old": 1}
    assert found["coverage"] == LAYERS
    assert found["command"] == "make test-all" and found["hardware"]["cores"] > 0 and found["commit"]


@pytest.mark.slow  # like the one above, which stays in `make test`
def test_a_run_that_failed_is_no_measurement(suite: Any) -> None:
    suite.makepyfile(test_wrong="def test_wrong():\n    assert False\n")
    run(suite).stdout.fnmatch_lines(["5 skipped"])
    assert not (suite.path / "result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("choice", [("-k", "passes"), ("-m", "not slow"), ("test_suite.py",)])
def test_a_run_of_some_tests_is_no_measurement(suite: Any, choice: tuple[str, ...]) -> None:
    run(suite, *choice).stdout.fnmatch_lines(["* skipped"])
    assert not (suite.path / "result.json").exists()
