"""`rfa bench load` with real processes: a server, generators, texts and series; short, and judged by its answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rfa.benchmarks.load.scenario import LiveLoad, Scenario
from rfa.benchmarks.load.server import started
from rfa.benchmarks.load.sessions import run_sessions

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = """
[short]
seconds = 2
warmup_seconds = 0.5
generators = 2
[short.text]
rate = 8
prompt_tokens = 8
new_tokens = 4
cases = 4
[short.batch]
rate = 10
length = 10
series = 2
[short.live]
streams = 6
rate = 10
series = 2
horizon = [0.5]
samples = 1
[short.budget]
max_errors = 0
max_rss_growth = 100

[impossible]
seconds = 1
warmup_seconds = 0
generators = 1
[impossible.batch]
rate = 10
length = 5
series = 1
[impossible.budget]
batch_max_ms = 0.000001
"""


def rfa(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rfa", "bench", "load", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory):
    path = tmp_path_factory.mktemp("load") / "scenarios.toml"
    path.write_text(SCENARIOS)
    return path


@pytest.mark.slow
def test_a_server_of_its_own_is_loaded_and_every_answer_is_right(scenarios, tmp_path, linear_bundle, books_bundle):
    out, figure = tmp_path / "result" / "short.json", tmp_path / "short.png"
    bundles = ("--bundle", linear_bundle, "--bundle", books_bundle)
    done = rfa("short", "--budgets", scenarios, *bundles, "--out", out, "--plot", figure, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert json.loads(out.read_text()) == result
    assert figure.stat().st_size > 0
    counts = result["counts"]
    assert counts["text.right"] == counts["text.sent"] > 0
    assert counts["batch.right"] == counts["batch.sent"] > 0
    assert counts["observation.right"] == counts["observation.sent"] == 120
    assert result["wrong"] == result["errors"] == {}
    assert result["passed"] is True
    assert set(result["latency_ms"]) == {"batch", "itl", "lateness", "observation", "text", "ttft"}
    assert len(result["generator_cpu_share"]) == 2
    assert result["server"]["rss_max"] > 0


def test_a_running_server_that_misses_a_budget_gives_exit_code_1(scenarios, linear_bundle):
    with started([linear_bundle], {"processes": 1}) as target:
        done = rfa(
            "impossible", "--budgets", scenarios, "--url", target.url, "--pid", target.pid, "--bundle", linear_bundle
        )
        assert psutil.pid_exists(target.pid)  # it is not the command's to end
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "rfa: impossible missed batch_max_ms"
    assert any(line.startswith("| batch_max_ms |") and "**missed**" in line for line in done.stdout.splitlines())
    assert not psutil.pid_exists(target.pid)


@pytest.mark.slow
def test_memory_of_idle_states_is_what_they_take(linear_bundle):
    scenario = Scenario("idle", kind="idle-sessions", sessions=50_000, live=LiveLoad(model="linear"))
    measured = run_sessions(scenario, [linear_bundle])
    assert measured["pool"]["memory_error"] < 0.1
    # Its own estimate of a Python object is coarser; the scenario's budget is what judges it.
    assert measured["store"]["memory_error"] < 0.25
    assert measured["store"]["computed_bytes"] > 50_000 * measured["store"]["state_bytes"]
