"""The scenario file: what is in it is read, and what is wrong with it is said."""

from __future__ import annotations

import dataclasses

import pytest

from rfa.benchmarks.load.scenario import (
    ScenarioError,
    changed,
    find_scenario,
    read_scenarios,
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a\n", "not TOML"),
        ("a = 1", "a: must be a table"),
        ("[a]\nsecond = 1", "a.second: Unexpected keyword argument"),
        ("[a.live]\nstream = 1", "a.live.stream: Unexpected keyword argument"),
        ("[a.live]\nstreams = 1.5", "a.live.streams: Input should be a valid integer"),
        ("[a.live]\nstreams = 1\nrate = 0", "a.live.rate: Input should be greater than 0"),
        ('[a.live]\nstreams = 1\narrivals = "sometimes"', "a.live.arrivals: Input should be 'periodic' or 'poisson'"),
        ('[a]\nkind = "other"', "a.kind: Input should be 'load'"),
        ("[a]\nseconds = 1", "a: it offers nothing"),
        ("[a.text]\nstreams = 1\nrate = 1", "a: text: give streams or rate"),
        ("[a.text]\nrate = 1\n[a.budget]\nttft_p98_ms = 1", "a: budget.ttft_p98_ms: known are"),
        ("[a.text]\nrate = 1\n[a.budget]\nmax_memory_error = 1", "a: budget.max_memory_error: known are"),
        ("[a.text]\nrate = 1\n[a.goodput]\nttft = 1", "a.goodput.ttft.[key]: Input should be 'ttft_ms'"),
        ("[a.text]\nrate = 1\n[a.server]\nport = [1]", "a.server.port"),
    ],
)
def test_a_wrong_file_is_reported_by_its_entry(tmp_path, text, message):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        read_scenarios(path)
    assert str(caught.value).startswith(f"own.toml: {message}")


def test_options_replace_entries_and_budgets_of_idle_loads_go():
    mixed = find_scenario("mixed")
    expected = changed(mixed, {"seconds": 3.0, "text.streams": 4, "live.streams": 0})
    assert (expected.seconds, expected.text.streams, expected.text.rate, expected.live.streams) == (3.0, 4, 0.0, 0)
    assert set(mixed.budget) - set(expected.budget) == {"observation_p99_ms"}
    assert dataclasses.replace(expected, budget={}).batch == mixed.batch
    with pytest.raises(ScenarioError, match=r"mixed\.seconds: Input should be greater than 0"):
        changed(mixed, {"seconds": -1.0})
