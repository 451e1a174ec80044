"""What a bundle states of its confidence is checked with the tokens that it keeps."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.export.writing import rewrite_bundle
from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, BundleError, check_golden, open_bundle
from rfa.runtime.bundle.calibration_document import LanguageCalibration
from rfa.runtime.bundle.documents import read_document
from rfa.runtime.bundle.held_out import chance, check_confidences, kept_rows, kept_tokens, spacing
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.bundle.token_confidence import reliability

FILE = "calibration.json"


def changed(change: Callable[[Any], object]) -> Any:
    document = json.loads((BUNDLE_ROOT / "books" / FILE).read_text())
    change(document)
    return document


def test_rows_are_spread_over_all_windows_and_the_first_are_kept_as_tokens() -> None:
    windows = np.arange(12 * 601).reshape(12, 601)  # 7,200 places: one row in eight of them
    assert spacing(windows) == 8
    places = np.arange(12 * 600)
    kept = kept_rows(places / 10_000, places % 16 == 15, windows)
    expected = [window * 600 + place for window in range(12) for place in range(7, 600, 8)]
    assert kept["confidence"] == [round(place / 10_000, 6) for place in expected]
    assert [bit == "1" for bit in kept["right"]] == [place % 16 == 15 for place in expected]
    assert kept_tokens(windows) == [list(range(257)), list(range(601, 601 + 257))]


def test_few_tokens_are_all_kept() -> None:
    windows = np.arange(2 * 33).reshape(2, 33)
    assert spacing(windows) == 1 and kept_tokens(windows) == windows.tolist()


def test_chance_holds_the_rows_of_an_honest_bundle_and_of_no_boastful_one() -> None:
    """Rows of a source that is right with the probability 0.8 c: within the limits in all of 400 draws, on average
    above what is stated, by no more than the mean of |N| of the bins; where 0.4 is stated, never."""
    generator = np.random.default_rng(0)

    def drawn(count: int) -> dict[str, Any]:
        confidence = generator.random(count)
        return reliability(confidence, generator.random(count) < 0.8 * confidence)

    whole = drawn(60_000)
    low, high = chance(whole["accuracy"], whole["count"], 1000)
    found = np.array([drawn(1000)["ece"] for _ in range(400)]) - whole["ece"]
    assert (found > low).all() and (found < high).all()
    assert 0 < found.mean() < high + low
    assert (found + whole["ece"] - 0.4 < low).all()
    # The variance of being right, of the law: mean of 0.8 c (1 - 0.8 c).
    variance = 0.4 - 0.64 / 3
    assert -low == pytest.approx(5 * math.sqrt(variance / 1000), rel=0.02)
    assert high + low == pytest.approx(math.sqrt(2 * variance * 15 / (math.pi * 1000)), rel=0.02)


def test_few_tokens_prove_no_certainty() -> None:
    """Two of two right in each bin: one of eight rows may be wrong."""
    assert chance([1.0] * 4, [2] * 4, 8)[1] > 1 / 8


def no_row_is_right(document: Any) -> None:
    rows = document["modes"]["recurrent"]["rows"]
    rows["right"] = "0" * len(rows["right"])


def all_is_worse(document: Any) -> None:
    """A third of all tokens less are right, wherever that is said but in the rows."""
    top = document["modes"]["recurrent"]["top"]
    top["accuracy"] = [max(0.0, share - 0.3) for share in top["accuracy"]]
    gaps = zip(top["count"], top["accuracy"], top["confidence"], strict=True)
    top["ece"] = sum(n * abs(a - c) for n, a, c in gaps) / sum(top["count"])
    document["summary"]["ece_top"]["recurrent"] = top["ece"]


@pytest.mark.parametrize(("change", "found"), [(no_row_is_right, "rows is 0.3"), (all_is_worse, "top.ece is 0.2")])
def test_an_error_that_the_rows_do_not_have_is_refused(change: Callable[[Any], object], found: str) -> None:
    reason = rf"^calibration\.json: modes\.recurrent: .*{found}.*outside the range that chance allows"
    with pytest.raises(BundleError, match=reason):
        read_document(LanguageCalibration, changed(change), FILE)


def one_row(key: str, other: Callable[[Any], Any]) -> Callable[[Any], object]:
    """Of the fourth row, which is at the end of a piece: after 256 tokens of the first window."""

    def change(document: Any) -> None:
        rows = document["modes"]["attention"]["rows"]
        before = rows[key]
        after = [*before[:3], other(before[3]), *before[4:]]
        rows[key] = "".join(after) if isinstance(before, str) else after

    return change


def a_colder_model(document: Any) -> None:
    for part in (document, document["summary"], document["modes"]["attention"]):
        if part is document["modes"]["attention"]:
            part["temperature"] *= 0.95
        else:
            part["temperature"]["attention"] *= 0.95


def another_text(document: Any) -> None:
    """The last token before the first row."""
    tokens = document["data"]["rows"]["tokens"][0]
    tokens[document["data"]["rows"]["every"] - 1] = 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (one_row("confidence", lambda value: value + 0.01), "attention.rows: row 3: the stated confidence is"),
        (one_row("right", lambda bit: "10"[int(bit)]), "attention.rows: row 3: the most probable token is"),
        (a_colder_model, "attention.rows: row 0: the stated confidence"),
        (another_text, "recurrent.rows: row 0: the stated confidence"),
        (lambda document: document["data"]["rows"]["tokens"][0].__setitem__(5, 4096), "outside the vocabulary of 4096"),
    ],
)
def test_what_the_model_does_not_say_again_is_refused(change: Callable[[Any], object], reason: str) -> None:
    """Documents that fit in themselves."""
    bundle, document = open_bundle(BUNDLE_ROOT / "books"), changed(change)
    read_document(LanguageCalibration, document, FILE)
    sessions = {name: bundle.session(name) for name in ("prefill", "attention")}
    with pytest.raises(BundleError, match=rf"^calibration\.json: .*{reason}"):
        check_confidences(document, sessions, bundle.weights())


def test_a_bundle_is_held_to_its_rows_at_load(language_bundle: Bundle, tmp_path: Path) -> None:
    calibration = copy.deepcopy(language_bundle.calibration)
    rows = calibration["modes"]["recurrent"]["rows"]
    # Every one: which are read again depends on the size.
    rows["confidence"] = [min(1.0, value + 0.01) for value in rows["confidence"]]
    with pytest.raises(
        BundleError, match=r"^calibration\.json: modes\.recurrent\.rows: row \d+: the stated confidence"
    ):
        rewrite_bundle(language_bundle, tmp_path / "other", language_bundle.read(CONSTANTS_FILE), calibration)
    assert not (tmp_path / "other").exists()


def test_an_older_bundle_without_rows_is_taken_without_the_check(language_bundle: Bundle, tmp_path: Path) -> None:
    calibration = copy.deepcopy(language_bundle.calibration)
    for part in (calibration["data"], *calibration["modes"].values()):
        del part["rows"]
    older = rewrite_bundle(language_bundle, tmp_path / "older", language_bundle.read(CONSTANTS_FILE), calibration)
    assert older.ece_rows == 0 < language_bundle.ece_rows
    assert 0 < check_golden(older) < check_golden(language_bundle)
