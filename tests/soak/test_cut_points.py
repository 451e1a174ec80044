"""Streams cut and taken up by another server: equal, and a state that forgets anything is noticed."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rfa.benchmarks.load.truth import open_models
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.filters.filter import FilterRuntime
from rfa.service.engine.models import Models
from rfa.service.engine.text.state import LanguageState
from tests.service.live import running
from tests.soak import cut_points
from tests.soak.cut_points import FILTERS, LANGUAGE, Tally, are_same_texts, cross

CUTS = 24


@pytest.fixture(scope="module")
def models() -> Models:
    return open_models([BUNDLE_ROOT / name for name in (*FILTERS, LANGUAGE)])


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


@contextmanager
def two_servers(models: Models, keys: Sequence[str]) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running(models, state_keys=key, workers=1)).url for key in keys]


def crossed(models: Models, count: int = CUTS, keys: Sequence[str] | None = None) -> Tally:
    with two_servers(models, keys or [new_key()] * 2) as urls:
        return asyncio.run(cross(urls, count, seed=3))


def test_what_is_cut_is_what_was_never_cut(models: Models) -> None:
    tally = crossed(models)
    assert not tally.wrong, tally.examples
    assert tally.cuts.total() >= CUTS
    assert {form.split()[0] for form in tally.cuts} == {"filter", "text"}


def test_a_filter_that_forgets_its_surprise_is_noticed(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack = FilterRuntime.unpack
    monkeypatch.setattr(FilterRuntime, "unpack", lambda self, data: replace(unpack(self, data), surprise=0.0))
    assert crossed(models).wrong["filter"] > 0


def test_a_text_that_counts_its_draws_anew_is_noticed(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack = LanguageState.unpack
    monkeypatch.setattr(LanguageState, "unpack", lambda *given: replace(unpack(*given), generated=0))
    assert crossed(models).wrong["text"] > 0


def test_a_state_that_another_server_refuses_is_noticed(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_points, "MOST_WRONG", 3)
    tally = crossed(models, keys=[new_key(), new_key()])
    assert tally.wrong.total() >= 3
    assert any("state_invalid" in example for example in tally.examples)


def tokens(*texts: str, logprob: float = -1.0) -> list[Any]:
    return [[{"id": index, "text": text, "logprob": logprob}, None, None] for index, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        (tokens("a b", " th", "e"), tokens("a b", "", " the"), True),  # held back there, given out at the cut here
        (tokens("a b", " th", ""), tokens("a b", "", ""), True),  # the stop " the" was completed behind the cut
        (tokens("a b", " thx", ""), tokens("a b", "", ""), False),
        (tokens("a b", " the", ""), tokens("a b", "", ""), False),  # a whole stop sequence must never be given out
        (tokens("a b", "", ""), tokens("a b", "c", ""), False),
        (tokens("a", logprob=-1.5), tokens("a"), False),
        (tokens("a"), tokens("a", ""), False),
    ],
)
def test_texts_with_stop_sequences_are_compared(found: list[Any], expected: list[Any], same: bool) -> None:
    assert are_same_texts(found, expected, [" the"]) is same


@pytest.mark.parametrize("code", [0, 1])
def test_the_command_stores_what_it_found(
    code: int, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def started(bundles: Sequence[Path], settings: dict[str, Any]) -> Iterator[Any]:
        assert settings["processes"] == 1
        given = {**settings, "state_keys": new_key()} if code else settings
        with running(models, **given) as live:
            yield live

    out = tmp_path / "result.json"
    monkeypatch.setattr(cut_points, "started", started)
    monkeypatch.setattr(cut_points, "MOST_WRONG", 2)
    monkeypatch.setattr(sys, "argv", ["cut_points", "--count", "4", "--out", str(out)])
    assert cut_points.main() == code
    document = json.loads(out.read_text())
    assert bool(document["streams_that_differ"]) == bool(code)
    assert f"{document['cuts']} cuts" in capsys.readouterr().out
