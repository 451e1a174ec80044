"""`rfa bench equalities`: what holds of a server, and what it finds of one whose numbers depend on the batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

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
