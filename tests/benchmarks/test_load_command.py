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
from rfa.benchmarks.load.server import ServerError, Usage, check_models, started
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
    assert any(line.startswith("batch_max_ms") and line.endswith("MISSED") for line in done.stdout.splitlines())
    assert not psutil.pid_exists(target.pid)


@pytest.mark.slow
def test_a_server_with_keys_is_loaded_with_the_key_of_the_environment(scenarios, linear_bundle):
    key = "a-key-of-the-load-test-0123456789"
    live = ("mixed", "--seconds", 1, "--warmup", 0, "--text-rate", 0, "--batch-rate", 5, "--filter-streams", 3)
    with started([linear_bundle], {"processes": 1, "api_keys": key}) as target:
        where = ("--url", target.url, "--bundle", linear_bundle, "--json")
        refused = rfa(*live, *where)
        admitted = rfa(*live, *where, RFA_API_KEY=key)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "answers 401; set RFA_API_KEY" in refused.stderr
    result = json.loads(admitted.stdout.splitlines()[-1])
    assert result["errors"] == result["wrong"] == {}
    assert result["counts"]["observation.right"] == result["counts"]["observation.sent"] == 30


def test_another_bundle_behind_the_name_is_refused(linear_bundle):
    with started([linear_bundle], {"processes": 1}) as target:
        with pytest.raises(ServerError, match="serves another 'linear'"):
            check_models(target.url, {}, {"linear": "0" * 64})
        with pytest.raises(ServerError, match="'books'"):
            check_models(target.url, {}, {"books": "0" * 64})


def test_a_server_that_does_not_start_is_reported_with_its_reason(tmp_path):
    with (
        pytest.raises(ServerError, match=r"ended with 1; its log ends: .*nowhere"),
        started([tmp_path / "nowhere"], {}),
    ):
        pass


def test_no_server_and_no_scenario_are_one_line(scenarios, linear_bundle):
    done = rfa("impossible", "--budgets", scenarios, "--url", "http://127.0.0.1:9", "--bundle", linear_bundle)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("rfa: no server at http://127.0.0.1:9")
    done = rfa("long", "--budgets", scenarios)
    assert done.returncode == 1
    assert done.stderr == "rfa: no scenario 'long' in scenarios.toml; it has short, impossible\n"


@pytest.mark.slow
def test_memory_of_idle_states_is_what_they_take(linear_bundle):
    scenario = Scenario("idle", kind="idle-sessions", sessions=50_000, live=LiveLoad(model="linear"))
    measured = run_sessions(scenario, [linear_bundle])
    assert measured["pool"]["memory_error"] < 0.1
    # Its own estimate of a Python object is coarser; the scenario's budget is what judges it.
    assert measured["store"]["memory_error"] < 0.25
    assert measured["store"]["computed_bytes"] > 50_000 * measured["store"]["state_bytes"]


FILL_TWICE = """
import numpy as np
from rfa.benchmarks.load.sessions import fill_pool, measure
from rfa.runtime.pool import StateField

def fill_twice(fields, count):
    pool, computed = fill_pool(fields, count)
    return (pool, {name: np.ones_like(array) for name, array in pool.arrays.items()}), computed

print(measure({"mean": StateField((64,), np.float64)}, 50_000, fill_twice)["memory_error"])
"""


def test_a_leak_in_the_memory_of_idle_states_is_seen():
    """The inverse: a pool with a second copy of every state is far from what the states should take."""
    # In a process of its own, as the measurement: here earlier tests left memory that a copy may take unseen.
    done = subprocess.run([sys.executable, "-c", FILL_TWICE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.5


def test_usage_is_of_the_whole_family_and_of_the_time_asked():
    usage = Usage(None)
    assert usage.between(0.0, 1e12) is None
    usage._samples = [(0.0, 1.0, 50), (1.0, 2.0, 100), (2.0, 2.5, 140), (3.0, 4.0, 120), (9.0, 9.0, 1)]
    assert usage.between(1.0, 3.0) == {
        "cpu_cores": 1.0,
        "rss_start": 100,
        "rss_end": 120,
        "rss_max": 140,
        "rss_growth": 0.2,
    }
