"""A real server on a real socket: tokens leave as they are made, connections survive, the process ends well."""

from __future__ import annotations

import json
import threading

import httpx
import pytest

from tests.service.conftest import Live
from tests.service.models import FakeFilter, FakeLanguage, fake_models
from tests.waiting import PATIENCE

PROMPT = {"inputs": "say |", "parameters": {"max_new_tokens": 5}}


def test_a_token_arrives_before_the_next_one_is_computed(live: Live) -> None:
    gate = threading.Semaphore(0)
    with (
        live(fake_models(FakeLanguage(gate=gate))) as address,
        httpx.Client(base_url=address, timeout=PATIENCE) as client,
    ):
        gate.release()  # the first token only: were it held back, this test would time out
        with client.stream("POST", "/generate", json={**PROMPT, "stream": True}) as response:
            tokens = []
            for line in response.iter_lines():
                if line:
                    tokens.append(json.loads(line.removeprefix("data: "))["token"]["text"])
                    gate.release()
    assert tokens == ["t", "h", "e", " ", "q"]


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
def test_a_step_arrives_before_the_next_one_is_computed(live: Live, accept: str) -> None:
    gate = threading.Semaphore(0)
    body = {"observations": [[float(index), 0.0] for index in range(5)], "stream": True}
    with (
        live(fake_models(filter=FakeFilter(gate=gate))) as address,
        httpx.Client(base_url=address, timeout=PATIENCE) as client,
    ):
        gate.release()
        with client.stream("POST", "/filter", json=body, headers={"Accept": accept}) as response:
            documents = []
            for line in response.iter_lines():
                if line:
                    documents.append(json.loads(line.removeprefix("data: ")))
                    gate.release()
    assert [document["mean"][0] for document in documents[:-1]] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert documents[-1]["done"] is True


def test_head_tells_what_get_would_without_a_body(live: Live) -> None:
    """Load balancers ask so, on a connection that they keep: a body would be taken for the next answer."""
    with live(fake_models()) as address, httpx.Client(base_url=address, timeout=PATIENCE) as client:
        for path, documents in (("/health", 1), ("/ready", 1), ("/metrics", 0)):
            got, asked = client.get(path), client.head(path)
            assert (asked.status_code, asked.content) == (200, b"") and got.content
            assert asked.headers["content-type"] == got.headers["content-type"]
            if documents:  # the metrics count the requests themselves
                assert asked.headers["content-length"] == got.headers["content-length"]
            refused = client.post(path)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
