"""The tail of a stream: as rare as it says, causal, in no unit, and not undone by one anomaly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rfa.experiments.filters import alarm_rates
from rfa.experiments.filters.rare import BODY, tail_probabilities


@pytest.fixture(scope="module")
def scores() -> np.ndarray:
    return np.abs(np.random.default_rng(3).standard_normal(60_000))


@pytest.mark.parametrize("kind", ["normal", "uniform", "exponential", "student"])
def test_a_tail_probability_is_a_share(kind: str) -> None:
    rng = np.random.default_rng(7)
    draws = {
        "normal": np.abs(rng.standard_normal(60_000)),
        "uniform": rng.random(60_000),
        "exponential": rng.exponential(size=60_000),
        "student": np.abs(rng.standard_t(3, 60_000)),
    }
    found = tail_probabilities(draws[kind])[500:]
    for rate in (1e-2, 1e-3):
        expected = rate * len(found)
        # The factor that is stated, and four deviations of a count.
        chance = 4 * np.sqrt(expected)
        assert expected / 1.5 - chance <= (found <= rate).sum() <= 1.5 * expected + chance


def test_the_body_is_not_rare(scores: np.ndarray) -> None:
    found = tail_probabilities(scores)
    assert ((found == 1) | (found <= BODY)).all()
    assert (found[1000:] < 1).mean() == pytest.approx(BODY, abs=0.005)


def test_what_comes_later_changes_nothing(scores: np.ndarray) -> None:
    assert np.array_equal(tail_probabilities(scores)[:5000], tail_probabilities(scores[:5000]))


def test_it_has_no_unit(scores: np.ndarray) -> None:
    """Powers of two: not even a rounding differs."""
    assert np.array_equal(tail_probabilities(2.0**40 * scores), tail_probabilities(scores))


def test_what_was_not_observed_teaches_nothing(scores: np.ndarray) -> None:
    gaps = np.full(2 * 3000, np.nan)
    gaps[::2] = scores[:3000]
    found = tail_probabilities(gaps)
    assert np.array_equal(found[::2], tail_probabilities(scores[:3000])) and (found[1::2] == 1).all()


def test_one_anomaly_does_not_hide_the_next(scores: np.ndarray) -> None:
    strange = scores[:10_000].copy()
    strange[[6000, 8000]] = 1000.0
    found = tail_probabilities(strange)
    assert found[6000] < 1e-5 and found[8000] < 1e-3
    assert (found[8001:] <= 1e-3).sum() <= 10  # of two that are expected


@pytest.mark.parametrize("bad", [[-1.0], [np.inf], [[1.0]]])
def test_what_is_no_score_is_refused(bad: list) -> None:
    with pytest.raises(ValueError, match="scores must be"):
        tail_probabilities(np.array(bad))


def test_the_table_of_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(alarm_rates, "SIMULATED", 1)
    monkeypatch.setattr(alarm_rates, "LENGTH", 400)
    monkeypatch.setattr(alarm_rates, "SHORTEST", 300)
    (tmp_path / "ucr").mkdir()
    values = np.random.default_rng(0).standard_normal(900)
    np.savez(tmp_path / "ucr" / "part.npz", **{"001_UCR_Anomaly_a_500_600_610": values, "002_x_b_100_600_610": values})
    out = tmp_path / "rates.json"
    monkeypatch.setattr("sys.argv", ["alarm_rates", "--data", str(tmp_path), "--out", str(out)])
    alarm_rates.main()
    rows = json.loads(out.read_text())["rows"]
    assert {name: row["series"] for name, row in rows.items()} == {"simulated": 6, "ucr": 1}
    assert rows["ucr"]["observations"] == 500
    assert capsys.readouterr().out.count("\n") == 4
    # Ten of 300 normal numbers at most are rarer than one in a hundred: three are expected.
    assert rows["ucr"]["learned"]["0.01"] <= 10 / 3


def test_only_what_is_clean_is_counted() -> None:
    probabilities = np.full(1000, 1.0)
    probabilities[[100, 300, 400, 500]] = 1e-3, 1e-3, 1e-5, np.nan
    is_clean = np.ones(1000, bool)
    is_clean[400] = False
    series = alarm_rates.Series(np.arange(1000.0), np.zeros(1000), is_clean)
    # 798 of them count: the first 200 do not, one is no clean one, and one was not observed.
    found = alarm_rates.over_nominal([series], [probabilities])
    assert found == {"0.01": pytest.approx(100 / 798), "0.001": pytest.approx(1000 / 798), "0.0001": 0.0}
