"""`rfa fit`: models of a file's series, and `rfa filter` with them."""

import json

import numpy as np
import pytest

from rfa.fitting import fit as module
from tests.cli.commands import rfa

CONFIG = {"max_harmonics": 1, "max_free_modes": 1, "iterations": 15}


def written(folder, days=40, keys=("a", "b")):
    """Series of hourly rows with a weekly pattern, and one that is too short."""
    rng = np.random.default_rng(0)
    lines = ["key,time,value"]
    for i, key in enumerate(keys):
        for k in range(24 * days):
            day, hour = divmod(k, 24)
            shape = 10 * (day % 7 < 5) * np.exp(-(((hour - 9) / 3) ** 2))
            stamp = np.datetime64("2024-01-01T00:00") + np.timedelta64(k, "h")
            lines.append(f"{key},{stamp},{100 * i + shape + rng.normal():.3f}")
    lines += [f"short,2024-01-01T0{k}:00,{k}" for k in range(5)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder / "data.csv"


def test_models_of_many_series_are_fitted_stopped_gone_on_with_and_used(tmp_path, monkeypatch):
    data, out = written(tmp_path), tmp_path / "models.json"
    read = ("--by", "key", "--tz", "Europe/Berlin")
    words = ("fit", data, *read, "--config", tmp_path / "config.json", "--out", out, "--json")
    fit_one = module._fit_one

    def broken(series, *rest):
        if series.values[0, 0] > 50:
            raise MemoryError("in the middle")
        return fit_one(series, *rest)

    monkeypatch.setattr(module, "_fit_one", broken)
    assert rfa(*words)[0] == 1
    assert not out.exists() and (tmp_path / "models.json.fitted").exists()

    def once(series, *rest):
        assert series.values[0, 0] > 50 or len(series.times) < 10, "was fitted before"
        return fit_one(series, *rest)

    monkeypatch.setattr(module, "_fit_one", once)
    code, reported, err = rfa(*words)
    assert code == 1 and "failed: short: column 'value' has" in err
    found = json.loads(reported.strip().splitlines()[-1])
    assert found["series"] == 2 and found["failed"] == 1 and all("calendar" in one for one in found["found"].values())
    assert not (tmp_path / "models.json.fitted").exists()
    document = json.loads(out.read_text())
    assert set(document["series"]) == {"a", "b"}

    table = tmp_path / "told.csv"
    code, _, err = rfa("filter", data, *read, "--system", out, "--horizon", "24", "--out", table)
    assert code == 1 and "contains systems for 'a', 'b', but none for 'short'" in err
    # Forty days from the first of January on, then a day more.
    assert sum(line.startswith("2024-02-10") or ",2024-02-10" in line for line in table.read_text().splitlines()) == 48
    (tmp_path / "index.csv").write_text("value\n" + "\n".join("12345") + "\n")
    (tmp_path / "one.json").write_text(json.dumps(document["series"]["a"]))
    code, _, err = rfa("filter", tmp_path / "index.csv", "--system", tmp_path / "one.json")
    assert code == 1 and "uses a calendar, but the times in the file are not dates" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "models.csv"), "--out must end in .json, got"),
        (("--out", "no/models.json"), "does not exist"),
        (("--out", "models.json", "--tz", "Mars"), "Mars"),
        (("--out", "models.json", "--holiday", "Christmas"), "holidays must be dates"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = rfa("fit", written(tmp_path, days=3, keys=("a",)), *words)
    assert code in (1, 2) and message in err
