"""huggingface_hub's unmodified InferenceClient against a live server: what it sends is served or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.lazy import LazyModule
from tests.service.models import FakeLanguage, fake_models
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    import huggingface_hub.errors
    import huggingface_hub.utils
    from huggingface_hub import InferenceClient
else:
    huggingface_hub = LazyModule("huggingface_hub")

SCRIPT = "the quick brown fox"
KEY = "a-key-of-sixteen-or-more"


@pytest.fixture(scope="module", autouse=True)
def _sessions() -> Iterator[None]:
    yield
    huggingface_hub.utils.close_session()  # the library keeps its connections open until it is told


@pytest.fixture(scope="module")
def address(live: Any) -> Iterator[str]:
    with live(fake_models(FakeLanguage(poison="bad"))) as address:
        yield address


@pytest.fixture
def client(address: str) -> InferenceClient:
    return huggingface_hub.InferenceClient(address)


def test_a_text(client: InferenceClient) -> None:
    assert client.text_generation("say |") == SCRIPT
    assert client.text_generation("say |", max_new_tokens=3) == "the"
    assert client.text_generation("say |", max_new_tokens=3, return_full_text=True) == "say |the"
    assert client.text_generation("say |", stop=["quiet", "ck b"]) == "the qui"


def test_every_path_that_a_text_can_be_asked_under(address: str) -> None:
    for path in ("", "/", "/generate"):
        client = huggingface_hub.InferenceClient(address + path)
        assert client.text_generation("say |") == SCRIPT
        assert "".join(client.text_generation("say |", stream=True)) == SCRIPT
    client = huggingface_hub.InferenceClient(address + "/generate_stream")
    assert "".join(client.text_generation("say |", stream=True)) == SCRIPT


def test_details(client: InferenceClient) -> None:
    output = client.text_generation("say |", details=True, max_new_tokens=40, seed=3, top_n_tokens=2)
    details = output.details
    assert output.generated_text == SCRIPT and details is not None
    assert (details.finish_reason, details.generated_tokens, details.seed) == ("eos_token", len(SCRIPT) + 1, 3)
    assert "".join(token.text for token in details.tokens) == SCRIPT
    assert [token.special for token in details.tokens] == [False] * len(SCRIPT) + [True]
    assert details.top_tokens is not None and len(details.top_tokens) == len(details.tokens)
    assert [top[0]["text"] for top in details.top_tokens[:3]] == ["t", "h", "e"]
    assert details.tokens[0].confidence == pytest.approx(0.9, abs=1e-6)  # type: ignore[attr-defined]  # ours, which the client passes through
    assert details.input_length == 5  # type: ignore[attr-defined]
    stopped = client.text_generation("say |", details=True, stop=["ck"]).details
    assert stopped is not None and stopped.finish_reason == "stop_sequence"


def test_a_stream(client: InferenceClient) -> None:
    assert list(client.text_generation("say |", stream=True, max_new_tokens=4)) == ["t", "h", "e", " "]
    events = list(client.text_generation("say |", stream=True, details=True, max_new_tokens=4, top_n_tokens=1))
    assert [event.index for event in events] == [1, 2, 3, 4]
    assert [event.token.text for event in events] == ["t", "h", "e", " "]
    ours = [event.token.confidence for event in events]  # type: ignore[attr-defined]
    assert ours == pytest.approx([0.9] * 4, abs=1e-6)
    assert [event.generated_text for event in events] == [None] * 3 + ["the "]
    assert events[-1].details is not None and all(event.details is None for event in events[:-1])
    assert (events[-1].details.finish_reason, events[-1].details.generated_tokens) == ("length", 4)
    assert [event.top_tokens[0].text for event in events if event.top_tokens] == ["t", "h", "e", " "]


NEUTRAL: dict[str, Any] = {
    "best_of": 1,
    "decoder_input_details": False,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "typical_p": 1.0,
    "watermark": False,
}
NOT_SERVED: list[tuple[str, Any]] = [
    ("best_of", 2),
    ("watermark", True),
    ("grammar", {"type": "regex", "value": "a+"}),
    ("adapter_id", "mine"),
]


def test_parameters_that_change_nothing_are_taken(client: InferenceClient) -> None:
    assert client.text_generation("say |", max_new_tokens=3, details=True, **NEUTRAL).generated_text == "the"


def test_a_client_that_writes_every_field_may_write_null(address: str) -> None:
    nulls = ("max_new_tokens", "top_n_tokens", "return_full_text", "temperature", "top_k", "top_p", "do_sample", "seed",
             "truncate", "grammar", "adapter_id", *NEUTRAL)  # fmt: skip
    body = {"inputs": "say |", "parameters": dict.fromkeys(nulls)}
    assert httpx.post(f"{address}/", json=body, timeout=PATIENCE).json()["generated_text"] == SCRIPT


@pytest.mark.parametrize(("name", "value"), NOT_SERVED, ids=[name for name, _ in NOT_SERVED])
@pytest.mark.parametrize("stream", [False, True])
def test_parameters_that_are_not_served_are_refused_by_name(
    client: InferenceClient, name: str, value: Any, stream: bool
) -> None:
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError) as refusal:
        list(client.text_generation("say |", details=True, stream=stream, **{name: value}))
    assert refusal.value.response.status_code == 422
    error = refusal.value.response.json()["error"]
    assert (error["param"], error["code"]) == (f"parameters.{name}", "not_supported")
    assert f"parameters.{name}" in str(refusal.value)


def test_the_client_s_token_is_the_server_s_key(live: Any) -> None:
    with live(fake_models(), api_keys=KEY) as address:
        with pytest.raises(huggingface_hub.errors.HfHubHTTPError) as refusal:
            huggingface_hub.InferenceClient(address, token="another").text_generation("say |")
        assert refusal.value.response.status_code == 401
        assert huggingface_hub.InferenceClient(address, token=KEY).text_generation("say |") == SCRIPT


def test_the_stream_path_streams_whatever_the_body_says(address: str) -> None:
    body = {"inputs": "say |", "parameters": {"max_new_tokens": 3}, "stream": False}
    response = httpx.post(f"{address}/generate_stream", json=body, timeout=PATIENCE)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]
    assert [event["generated_text"] for event in events] == [None, None, "the"]


def test_the_page_stays_at_the_root(address: str) -> None:
    assert httpx.get(f"{address}/", timeout=PATIENCE).headers["content-type"].startswith("text/html")
    refused = httpx.put(f"{address}/", timeout=PATIENCE)
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, POST"
