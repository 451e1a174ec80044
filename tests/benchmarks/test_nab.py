"""Two small series with one planted jump: read, filtered, scored, written."""

import json
from datetime import datetime, timedelta

import numpy as np
import pytest

from rfa.benchmarks.nab import benchmark as nab
from rfa.benchmarks.results_page.filters import nab_tables
from rfa.library.nab import PROFILES

START = datetime(2014, 4, 1)


def stamp(row: int) -> str:
    return str(START + timedelta(minutes=5 * row))


@pytest.fixture
def folder(tmp_path):
    """NAB's layout; the second series has a spike of 100 deviations in its window, the first has none."""
    generator = np.random.default_rng(0)
    windows = {"quiet/calm.csv": [], "loud/spike.csv": [[f"{stamp(380)}.000000", f"{stamp(439)}.000000"]]}
    for name in windows:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True)
        values = 20 + generator.standard_normal(900)
        if "spike" in name:
            values[385] += 100
        rows = [f"{stamp(i)},{value:.6f}" for i, value in enumerate(values)]
        path.write_text("timestamp,value\n" + "\n".join(rows) + "\n")
    (tmp_path / "windows.json").write_text(json.dumps(windows | {"missing/file.csv": []}))
    return tmp_path


def test_series_and_windows_are_read(folder):
    loud, quiet = nab.load_nab(folder)
    assert (loud.name, quiet.name) == ("loud/spike.csv", "quiet/calm.csv")
    assert loud.labelled.windows == ((380, 439),) and loud.labelled.start == 135 and not quiet.labelled.windows
    assert np.diff(loud.times).tolist() == [300.0] * 899
    (folder / "windows.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"windows\.json"):
        nab.load_nab(folder)


def test_the_windowed_gaussian_is_the_normal_distribution_of_what_came_before():
    from scipy.stats import norm

    values = np.random.default_rng(1).standard_normal(50)
    scores = nab.windowed_gaussian(values)
    assert scores[0] == 0
    for i in (2, 17, 49):
        expected = norm.cdf(abs(values[i] - values[:i].mean()) / values[:i].std())
        assert scores[i] == pytest.approx(expected, rel=1e-9)


def test_the_windowed_gaussian_moves_its_window_by_steps(monkeypatch):
    monkeypatch.setattr(nab, "GAUSSIAN_WINDOW", 10)
    monkeypatch.setattr(nab, "GAUSSIAN_STEP", 4)
    values = np.random.default_rng(2).standard_normal(30)
    scores = nab.windowed_gaussian(values)
    for i, past in ((13, values[:10]), (14, values[4:14]), (17, values[4:14]), (18, values[8:18])):
        z = abs(values[i] - past.mean()) / past.std()
        assert scores[i] == pytest.approx(0.5 + 0.5 * float(np.vectorize(nab.math.erf)(z / 2**0.5)), rel=1e-9)


def test_a_planted_spike_is_found_and_written(folder, tmp_path):
    out = tmp_path / "results" / "filter-nab.json"
    document = nab.write_nab("auto", folder, out)
    assert json.loads(out.read_text()) == document
    assert (document["files"], document["windows"], document["rate"]) == (2, 1, nab.RATE)
    loud, calm = document["series"]["loud/spike.csv"], document["series"]["quiet/calm.csv"]
    assert (loud["windows"], loud["found"]) == (1, 1) and (calm["windows"], calm["found"]) == (0, 0)
    # At most one alarm in QUIET rows of the 765 that count.
    assert all(0 <= one["false_alarms"] <= 8 for one in (loud, calm))
    whole = {name: parts["whole"] for name, parts in document["detectors"].items()}
    standard = whole["auto"]["standard"]
    assert standard["score"] == pytest.approx(100 * (loud["score"] + calm["score"] + 1) / 2, abs=1e-9)
    for name in PROFILES:
        assert whole["null"][name] == {"score": None, "best": 0.0, "best_threshold": None}
        assert whole["auto"][name]["best"] >= whole["auto"][name]["score"]
        assert whole["auto"][name]["best_rate"] in nab.RATES
    (table,) = nab_tables(document)
    assert next(iter(table.rows))[:2] == (f"auto, a rate of {nab.RATE}", f"{standard['score']:.1f}")
