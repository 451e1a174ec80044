"""A real server on a real socket: tokens leave as they are made, connections survive, the process ends well."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.service.conftest import Live
from tests.service.models import FakeFilter, FakeLanguage, fake_models
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
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


def test_a_client_that_hangs_up_frees_its_place(live: Live) -> None:
    gate = threading.Semaphore(0)
    models = fake_models(FakeLanguage(script="x" * 5000, gate=gate))
    with live(models, workers=1, max_running=1, max_waiting=0) as address:
        long = {"inputs": "say |", "parameters": {"max_new_tokens": 4000}}
        briefly = httpx.Timeout(PATIENCE, read=0.3)
        with httpx.Client(base_url=address, timeout=PATIENCE) as client:
            gate.release()
            with client.stream("POST", "/generate", json={**long, "stream": True}) as response:
                next(response.iter_lines())
                assert client.post("/generate", json=PROMPT).status_code == 429
            with pytest.raises(httpx.ReadTimeout):
                # Until the place of the stream is free, which this request then holds, and leaves.
                for _ in range(1000):
                    gate.release()  # a token that cannot be delivered shows that the client is gone
                    assert client.post("/generate", json=long, timeout=briefly).status_code == 429
            gate.release(100_000)
            answers = []

            def is_answered() -> bool:
                answers.append(client.post("/generate", json=PROMPT))
                return answers[-1].status_code != 429

            wait_until(is_answered)
            assert answers[-1].json()["generated_text"] == "xxxxx"


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


@pytest.mark.slow
def test_the_process_says_where_it_is_and_ends_on_a_signal(linear_bundle: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from rfa.service.settings import Settings; from rfa.service.server import serve; serve(Settings())",
    ]
    environment = {**os.environ, "RFA_PORT": "0", "RFA_BUNDLES": str(linear_bundle), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address is not None and "linear (filter)" in line, line
        with httpx.Client(base_url=address[0], timeout=PATIENCE) as client:
            assert client.get("/ready").json() == {"status": "ready", "models": ["auto", "auto-joint", "linear"]}
            assert client.post("/filter", json={"observations": [[1.0, 0.0], None]}).status_code == 200
            assert client.post("/generate", json=PROMPT).status_code == 404
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, rest
    assert "Traceback" not in rest
