"""huggingface_hub's unmodified InferenceClient against a live server: what it sends is served or refused by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError, UnknownError
from huggingface_hub.utils import close_session

from tests.service.models import FakeLanguage, fake_models
from tests.waiting import PATIENCE

SCRIPT = "the quick brown fox"
KEY = "a-key-of-sixteen-or-more"


@pytest.fixture(scope="module", autouse=True)
def _sessions() -> Iterator[None]:
    yield
    close_session()  # the library keeps its connections open until it is told


@pytest.fixture(scope="module")
def address(live: Any) -> Iterator[str]:
    with live(fake_models(FakeLanguage(poison="bad"))) as address:
        yield address


@pytest.fixture
def client(address: str) -> InferenceClient:
    return InferenceClient(address)


def test_a_text(client: InferenceClient) -> None:
    assert client.text_generation("say |") == SCRIPT
    assert client.text_generation("say |", max_new_tokens=3) == "the"
    assert client.text_generation("say |", max_new_tokens=3, return_full_text=True) == "say |the"
    assert client.text_generation("say |", stop=["quiet", "ck b"]) == "the qui"


def test_every_path_that_a_text_can_be_asked_under(address: str) -> None:
    for path in ("", "/", "/generate"):
        client = InferenceClient(address + path)
        assert client.text_generation("say |") == SCRIPT
        assert "".join(client.text_generation("say |", stream=True)) == SCRIPT
    client = InferenceClient(address + "/generate_stream")
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


def test_sampling_is_asked_for_and_seeded(live: Any) -> None:
    with live(fake_models(FakeLanguage(sureness=0.3))) as address:
        client = InferenceClient(address)
        assert client.text_generation("say |", do_sample=False, temperature=3.0) == SCRIPT
        sampled = [client.text_generation("say |", do_sample=True, seed=seed, max_new_tokens=12) for seed in (1, 1, 2)]
        assert sampled[0] == sampled[1] != sampled[2]
        assert client.text_generation("say |", do_sample=True, top_k=1) == SCRIPT
        assert client.text_generation("say |", do_sample=True, top_p=0.01) == SCRIPT


def test_a_truncated_prompt_keeps_its_end(client: InferenceClient) -> None:
    output = client.text_generation("| x |", details=True, truncate=2)
    assert output.generated_text == SCRIPT
    assert output.details is not None
    assert output.details.input_length == 2  # type: ignore[attr-defined]


def test_the_async_client(address: str) -> None:
    async def several() -> tuple[list[str], list[str]]:
        async with AsyncInferenceClient(address) as client:
            texts = await asyncio.gather(*[client.text_generation("say |", max_new_tokens=n) for n in range(1, 9)])
            pieces = [piece async for piece in await client.text_generation("say |", stream=True, max_new_tokens=3)]
            return texts, pieces

    texts, pieces = asyncio.run(several())
    assert texts == [SCRIPT[:n] for n in range(1, 9)]
    assert pieces == ["t", "h", "e"]


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
    ("decoder_input_details", True),
    ("repetition_penalty", 1.2),
    ("frequency_penalty", 0.1),
    ("typical_p", 0.5),
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
    with pytest.raises(HfHubHTTPError) as refusal:
        list(client.text_generation("say |", details=True, stream=stream, **{name: value}))
    assert refusal.value.response.status_code == 422
    error = refusal.value.response.json()["error"]
    assert (error["param"], error["code"]) == (f"parameters.{name}", "not_supported")
    assert f"parameters.{name}" in str(refusal.value)


def test_what_the_names_of_alike_numbers_mean(address: str) -> None:
    """1 and 1.0 are one number in JSON; a truth value is no number."""
    for value, status in ((1, 200), (True, 422), ("1", 422), ([], 422)):
        body = {"inputs": "say |", "parameters": {"typical_p": value, "max_new_tokens": 1}}
        assert httpx.post(f"{address}/", json=body, timeout=PATIENCE).status_code == status, value


def test_failures_have_their_status(address: str, live: Any) -> None:
    with pytest.raises(HfHubHTTPError) as failure:
        InferenceClient(address).text_generation("bad |")
    assert failure.value.response.status_code == 500
    with (
        live(fake_models(), max_running=1, max_waiting=0, max_prompt_tokens=8) as small,
        pytest.raises(HfHubHTTPError) as refusal,
    ):
        InferenceClient(small).text_generation("much too long")
    assert refusal.value.response.json()["error"]["code"] == "prompt_too_long"


def test_the_client_s_token_is_the_server_s_key(live: Any) -> None:
    with live(fake_models(), api_keys=KEY) as address:
        with pytest.raises(HfHubHTTPError) as refusal:
            InferenceClient(address, token="another").text_generation("say |")
        assert refusal.value.response.status_code == 401
        assert InferenceClient(address, token=KEY).text_generation("say |") == SCRIPT


def test_a_stream_that_fails_says_so(live: Any) -> None:
    pieces = []
    with live(fake_models(FakeLanguage(script="the bad fox", poison="bad"))) as address:
        client = InferenceClient(address)
        with pytest.raises(UnknownError, match="not finite"):
            for piece in client.text_generation("say |", stream=True):
                pieces.append(piece)
    assert "".join(pieces) == "the bad"


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


def test_the_shipped_model(live: Any, books_bundle: Path) -> None:
    with live(bundles=(books_bundle,)) as address:
        client = InferenceClient(address)
        expected: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "temperature": 0.8, "seed": 7}
        output = client.text_generation("It was the", details=True, **expected)
        pieces = list(client.text_generation("It was the", stream=True, **expected))
    assert output.details is not None and output.details.generated_tokens == 12
    assert "".join(pieces) == output.generated_text != ""
    assert all(0 < token.confidence < 1 for token in output.details.tokens)
