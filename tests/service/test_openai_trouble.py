"""OpenAI's unmodified client where a server is full, a model fails or the client leaves."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.lazy import LazyModule
from tests.service.models import FakeLanguage, fake_models
from tests.service.test_openai_client import client_of, create, streamed, texts
from tests.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    import openai
else:
    openai = LazyModule("openai")


class Watch:
    """What a client's requests came to: statuses, and which retry each was."""

    def __init__(self, **after: Any) -> None:
        self.seen: list[tuple[int, str]] = []
        self.retry_after: list[str | None] = []
        self._after = after
        self.http_client = openai.DefaultHttpxClient(event_hooks={"response": [self._note]})

    def _note(self, response: Any) -> None:
        self.seen.append((response.status_code, response.request.headers["x-stainless-retry-count"]))
        self.retry_after.append(response.headers.get("retry-after"))
        if response.status_code == 429 and "refused" in self._after:
            self._after["refused"]()


def test_a_full_server_is_tried_again_when_it_says(live: Any) -> None:
    gate = threading.Semaphore(0)
    with (
        live(fake_models(FakeLanguage(gate=gate)), workers=1, max_running=1, max_waiting=0) as address,
        client_of(address) as first,
    ):

        def make_space() -> None:
            gate.release(1000)
            wait_for(address, "rfa_num_requests_running 0.0")

        watch = Watch(refused=make_space)
        held = threading.Thread(target=create, args=(first,))
        held.start()
        wait_for(address, "rfa_num_requests_running 1.0")
        with client_of(address) as hasty, pytest.raises(openai.RateLimitError) as refusal:
            create(hasty)
        assert refusal.value.code == "overloaded"
        assert int(refusal.value.response.headers["retry-after"]) >= 1
        with client_of(address, max_retries=2, http_client=watch.http_client) as patient:
            assert create(patient, max_tokens=3).choices[0].text == "the"
        held.join()
    assert watch.seen == [(429, "0"), (200, "1")]
    assert watch.retry_after == ["1", None]


def test_a_failure_of_the_model_is_not_tried_again(live: Any) -> None:
    watch = Watch()
    with (
        live(fake_models(FakeLanguage(poison="bad"))) as address,
        client_of(address, max_retries=2, http_client=watch.http_client) as client,
    ):
        with pytest.raises(openai.InternalServerError) as failure:
            create(client, ["say |", "bad |"])
        assert failure.value.code == "non_finite_output"
        assert create(client, max_tokens=3).choices[0].text == "the"
    assert watch.seen == [(500, "0"), (200, "0")]


def test_a_stream_that_fails_ends_with_the_error(live: Any) -> None:
    with live(fake_models(FakeLanguage(script="the bad fox", poison="bad"))) as address, client_of(address) as client:
        pieces = []
        with pytest.raises(openai.APIError, match="not finite") as failure:
            for chunk in streamed(client):
                pieces.append(chunk.choices[0].text)
        assert failure.value.code == "non_finite_output"
        assert "".join(pieces) == "the bad"
        body = {"prompt": ["say |", "bad"], "stream": True, "temperature": 0}
        raw = httpx.post(f"{address}/v1/completions", json={**body, "prompt": "say |"}, timeout=PATIENCE).text
        assert json.loads(raw.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "non_finite_output"
        assert "[DONE]" not in raw
        assert httpx.post(f"{address}/v1/completions", json=body, timeout=PATIENCE).status_code in (200, 500)
        wait_for(address, "rfa_num_requests_running 0.0")


@pytest.mark.parametrize("stream", [False, True])
def test_one_prompt_that_fails_ends_the_others(live: Any, stream: bool) -> None:
    gate = threading.Semaphore(0)
    model = FakeLanguage(script="x" * 4000, gate=gate, bomb="bad")
    with live(fake_models(model), workers=1) as address, client_of(address) as client:
        gate.release(8)  # enough for the first prompt to fail, far fewer than the others would take
        with pytest.raises(openai.APIError):
            for _ in create(client, ["bad |", "say |", "go |"], max_tokens=4000, stream=stream):
                pass
        wait_for(address, "rfa_num_requests_running 0.0", gate)
        gate.release(10)
        assert create(client, max_tokens=3).choices[0].text == "xxx"
    assert len(model.batches) < 4000


def test_prompts_are_admitted_all_or_none(live: Any) -> None:
    gate = threading.Semaphore(0)
    with (
        live(fake_models(FakeLanguage(gate=gate)), workers=1, max_running=1, max_waiting=2) as address,
        client_of(address) as client,
    ):
        with pytest.raises(openai.UnprocessableEntityError) as refusal:
            create(client, ["a"] * 4)  # more than there are places: no retry would help
        assert (refusal.value.param, refusal.value.code) == ("prompt", "too_large")
        held = threading.Thread(target=create, args=(client,))
        held.start()
        wait_for(address, "rfa_num_requests_running 1.0")
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError):
                create(client, ["a"] * 3, stream=stream)
            wait_for(address, "rfa_num_requests_waiting 0.0")
        gate.release(1000)
        held.join()
        assert texts(create(client, ["|"] * 3, max_tokens=3)) == ["the"] * 3


def test_a_client_that_leaves_frees_its_places(live: Any) -> None:
    gate = threading.Semaphore(0)
    model = FakeLanguage(script="x" * 4000, gate=gate)
    with live(fake_models(model), workers=1, max_running=2) as address, client_of(address) as client:
        gate.release(1)
        stream = streamed(client, ["a", "b", "c"], max_tokens=4000)
        assert next(iter(stream)).choices[0].text == "x"
        stream.close()
        wait_for(address, "rfa_num_requests_running 0.0", gate)
        wait_for(address, "rfa_num_requests_waiting 0.0")
        with pytest.raises(openai.APITimeoutError):
            create(client, ["a", "b", "c"], max_tokens=4000, timeout=0.3)
        wait_for(address, "rfa_num_requests_running 0.0", gate)
        wait_for(address, "rfa_num_requests_waiting 0.0")
    assert len(model.batches) < 4000


def wait_for(address: str, line: str, gate: threading.Semaphore | None = None) -> None:
    """Wait for a line of /metrics, letting the model make one step at a time."""

    def is_there() -> bool:
        if line in httpx.get(f"{address}/metrics", timeout=PATIENCE).text.splitlines():
            return True
        if gate is not None:
            gate.release()
        return False

    wait_until(is_there)
