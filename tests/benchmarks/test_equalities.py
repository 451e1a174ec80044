"""`rfa bench equalities`: what holds of a server, and what it finds of one whose numbers depend on the batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rfa.benchmarks.language import equalities
from rfa.cli.main import app
from rfa.runtime.text.contexts import StepOutput
from tests.service.live import running as running_server
from tests.service.models import FakeLanguage, Seen, SeenMore, fake_models

CASES = ["--cases", "20", "--json"]


class Unlike(FakeLanguage):
    """Logits that depend on the number of rows."""

    def step(
        self, contexts: Sequence[Seen], tokens: Sequence[int], noise: np.ndarray
    ) -> tuple[StepOutput, list[SeenMore]]:
        output, advances = super().step(contexts, tokens, noise)
        return output._replace(logits=output.logits * np.float32(1 + 1e-6 * len(contexts))), advances


def run(*arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(app, ["bench", "equalities", *arguments])
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def address() -> Any:
    with running_server(fake_models(FakeLanguage(script="né € fox" * 9))) as server:
        yield f"{server.url}/v1"


def test_all_five_hold_here(address: str) -> None:
    with running_server(fake_models(FakeLanguage(script="né € fox" * 9))) as other:
        code, found = run(address, "--replica", f"{other.url}/v1", *CASES)
    assert code == 0 and list(found) == ["alone", "batched", "chunked", "restored", "replica"]
    counts = {name: (one["cases"], one["equal"], one["largest_difference"]) for name, one in found.items()}
    assert counts == dict.fromkeys(found, (20, 20, 0)) | {"restored": (40, 40, 0)}  # by prompt and by state


def test_numbers_that_depend_on_the_batch_are_found(address: str) -> None:
    with running_server(fake_models(Unlike(sureness=0.5)), workers=1) as unlike:
        code, found = run(f"{unlike.url}/v1", "--replica", address, *CASES)
    assert code == 1
    assert found["alone"]["equal"] == 20 and found["restored"]["equal"] == 40
    assert found["batched"]["equal"] < 20 and found["batched"]["largest_difference"] > 0
    assert found["replica"]["equal"] == 0


def test_half_of_the_first_replies_come_from_the_replica(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server has one request at a time, except for the batched ones."""
    sent: dict[str, list[int]] = {}
    running: dict[str, int] = {}
    complete = equalities.Endpoint.complete

    async def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        running[self._url] = running.get(self._url, 0) + 1
        sent.setdefault(self._url, []).append(running[self._url])
        try:
            return await complete(self, *arguments, **options)
        finally:
            running[self._url] -= 1

    monkeypatch.setattr(equalities.Endpoint, "complete", counted)
    with running_server(fake_models(FakeLanguage(script="né € fox" * 9))) as other:
        code, _ = run(address, "--replica", f"{other.url}/v1", *CASES)
    assert code == 0 and len(sent) == 2
    for found in sent.values():
        # Per case: 7 requests for its own first reply and 1 for that of the other server, and the batch of 10 at once.
        assert len(found) == 10 * (7 + 1 + 1) and [one for one in found if one > 1] == list(range(2, 11))
