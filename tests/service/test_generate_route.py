"""POST /generate over a model that recites a script: text, details, streams, seeds, and failures that stay alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from rfa.service.errors import ErrorReply
from rfa.service.schemas.text_replies import GenerateEvent, GenerateReply
from tests.service.models import FakeLanguage, fake_models, slow_down
from tests.service.replies import read

pytestmark = pytest.mark.anyio
SCRIPT = "the quick brown fox"


async def post(
    client: httpx.AsyncClient, inputs: str = "say |", stream: bool = False, **parameters: Any
) -> httpx.Response:
    return await client.post("/generate", json={"inputs": inputs, "parameters": parameters, "stream": stream})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


async def test_recites_to_the_end(connect: Any) -> None:
    async with connect() as client:
        response = await post(client, max_new_tokens=40, seed=3)
    assert response.status_code == 200
    reply = read(GenerateReply, response.content)
    assert reply.generated_text == SCRIPT
    assert reply.details is not None
    assert reply.details.finish_reason == "eos_token"
    assert reply.details.generated_tokens == len(SCRIPT) + 1
    assert reply.details.input_length == len("say |")
    assert reply.details.seed == 3
    assert reply.details.tokens[-1].special and not reply.details.tokens[0].special
    assert reply.details.tokens[0].confidence == pytest.approx(0.9, abs=1e-6)
    assert reply.details.tokens[0].logprob == pytest.approx(-0.1053605, abs=1e-6)
    assert reply.continuations is None and reply.details.top_tokens is None and reply.details.latents is None


async def test_latents_without_the_details_that_tell_them_are_refused(connect: Any) -> None:
    async with connect() as client:
        refused = await post(client, return_latents=True, details=False)
        streamed = await post(client, stream=True, return_latents=True, details=False, max_new_tokens=1)
    error = read(ErrorReply, refused.content).error
    assert (refused.status_code, error.param, error.code) == (422, "parameters.return_latents", "needs_details")
    assert all(event["latent"] is not None for event in events(streamed))


async def test_the_stream_says_what_the_plain_reply_says(connect: Any) -> None:
    expected: dict[str, Any] = {
        "max_new_tokens": 9,
        "seed": 5,
        "temperature": 2.0,
        "top_n_tokens": 3,
        "return_latents": True,
    }
    async with connect() as client:
        plain = read(GenerateReply, (await post(client, **expected)).content)
        lines = [read(GenerateEvent, json.dumps(line)) for line in events(await post(client, stream=True, **expected))]
    assert plain.details is not None
    assert [line.index for line in lines] == list(range(1, 10))
    assert [line.token for line in lines] == plain.details.tokens
    assert [line.top_tokens for line in lines] == plain.details.top_tokens
    assert [line.latent for line in lines] == plain.details.latents
    assert [line.generated_text for line in lines] == [None] * 8 + [plain.generated_text]
    assert "".join(line.token.text for line in lines if line.token) == plain.generated_text
    assert lines[-1].details is not None and lines[-1].details.finish_reason == "length"
    assert all(line.details is None for line in lines[:-1])


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_sequences_cut_the_text(connect: Any, stream: bool) -> None:
    async with connect() as client:
        response = await post(client, stream=stream, max_new_tokens=40, stop=["quiet", "ck b"])
    last = events(response)[-1] if stream else response.json()
    assert last["generated_text"] == "the qui"
    assert last["details"]["finish_reason"] == "stop_sequence"


async def test_a_character_of_several_tokens_is_never_cut(connect: Any) -> None:
    async with connect(fake_models(FakeLanguage(script="né €"))) as client:
        lines = events(await post(client, stream=True, max_new_tokens=40))
        cut = (await post(client, max_new_tokens=2)).json()
    assert [line["token"]["text"] for line in lines] == ["n", "", "é", " ", "", "", "€", ""]
    assert cut["generated_text"] == "n"


async def test_seeds_decide_and_samples_differ(connect: Any) -> None:
    async with connect() as client:
        first = (await post(client, do_sample=True, temperature=8.0, seed=1, n=3, max_new_tokens=12)).json()
        again = (await post(client, do_sample=True, temperature=8.0, seed=1, n=3, max_new_tokens=12)).json()
        other = (await post(client, do_sample=True, temperature=8.0, seed=2, n=3, max_new_tokens=12)).json()
        single = (await post(client, do_sample=True, temperature=8.0, seed=1, max_new_tokens=12)).json()
        drawn = [(await post(client, temperature=8.0, max_new_tokens=2)).json()["details"]["seed"] for _ in range(2)]
    texts = [item["generated_text"] for item in first["continuations"]]
    assert len(set(texts)) == 3
    assert first["generated_text"] == texts[0] == single["generated_text"]
    assert texts == [item["generated_text"] for item in again["continuations"]]
    assert texts[0] != other["generated_text"]
    assert drawn[0] != drawn[1]


async def test_what_samples_and_what_is_greedy(connect: Any) -> None:
    async with connect(fake_models(FakeLanguage(sureness=0.3))) as client:
        greedy = [
            (await post(client, max_new_tokens=19, **parameters)).json()["generated_text"]
            for parameters in ({}, {"temperature": 0.0}, {"temperature": 3.0, "do_sample": False}, {"top_k": 1})
        ]
        sampled = [
            (await post(client, max_new_tokens=19, seed=0, **parameters)).json()["generated_text"]
            for parameters in ({"do_sample": True}, {"temperature": 1.0}, {"top_p": 1.0})
        ]
    assert greedy == [SCRIPT] * 4
    assert all(text != SCRIPT for text in sampled)


async def test_latent_noise_is_seeded_and_scaled(connect: Any) -> None:
    async def latents(client: httpx.AsyncClient, **parameters: Any) -> Any:
        return (await post(client, return_latents=True, max_new_tokens=2, **parameters)).json()["details"]["latents"]

    async with connect() as client:
        mean = await latents(client, seed=1)
        noisy = await latents(client, seed=1, latent_noise=1.0)
        again = await latents(client, seed=1, latent_noise=1.0)
        doubled = await latents(client, seed=1, latent_noise=2.0)
        other = await latents(client, seed=2, latent_noise=1.0)
    assert mean == [[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]] * 2
    assert noisy == again != other
    assert doubled[1][0][0] == pytest.approx(2 * noisy[1][0][0], rel=1e-5)


async def test_prompt_options(connect: Any) -> None:
    async with connect() as client:
        full = (await post(client, return_full_text=True, max_new_tokens=3)).json()
        truncated = (await post(client, inputs="x" * 50 + "|", truncate=4, max_new_tokens=3)).json()
        empty = (await post(client, inputs="", max_new_tokens=3)).json()
        bare = (await post(client, details=False)).json()
    assert full["generated_text"] == "say |the"
    assert (truncated["details"]["input_length"], truncated["generated_text"]) == (4, "the")
    assert (empty["details"]["input_length"], empty["generated_text"]) == (1, "ttt")
    assert bare["details"] is None


async def test_a_deadline_ends_the_text(connect: Any) -> None:
    model = FakeLanguage(script="a" * 200)
    slow_down(model, "step", 0.02)
    async with connect(fake_models(model)) as client:
        reply = (await post(client, max_new_tokens=200, deadline_ms=100)).json()
        lines = events(await post(client, stream=True, max_new_tokens=200, deadline_ms=100))
    for details in (reply["details"], lines[-1]["details"]):
        assert details["finish_reason"] == "deadline"
        assert details["generated_tokens"] < 200
    assert reply["generated_text"] == "a" * reply["details"]["generated_tokens"]


async def test_a_deadline_before_the_first_token_still_answers(connect: Any) -> None:
    model = FakeLanguage()
    slow_down(model.vocabulary, "encode", 0.05)
    async with connect(fake_models(model)) as client:
        lines = events(await post(client, stream=True, deadline_ms=10, n=2))
    assert len(lines) == 1
    assert read(GenerateEvent, json.dumps(lines[0])).token is None
    assert lines[0]["generated_text"] == ""
    assert [item["details"]["finish_reason"] for item in lines[0]["continuations"]] == ["deadline"] * 2


async def test_a_broken_row_fails_alone(connect: Any) -> None:
    async with connect(fake_models(FakeLanguage(poison="bad")), workers=1) as client:
        replies = await asyncio.gather(
            *(post(client, inputs=f"{word} |", max_new_tokens=30) for word in ("good", "bad", "fine", "bad", "well"))
        )
        metrics = (await client.get("/metrics")).text
    assert [reply.status_code for reply in replies] == [200, 500, 200, 500, 200]
    assert all(reply.json()["generated_text"] == SCRIPT for reply in replies[::2])
    assert replies[1].json()["error"]["code"] == "non_finite_output"
    assert 'rfa_corrupted_requests_total{model_name="recite"} 2.0' in metrics


async def test_a_step_that_raises_fails_only_its_cause(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(fake_models(FakeLanguage(bomb="boom")), workers=1) as client:
        replies = await asyncio.gather(
            *(post(client, inputs=f"{word} |", max_new_tokens=30) for word in ("good", "boom", "fine"))
        )
        lines = await post(client, inputs="boom |", stream=True)
        after = await post(client, max_new_tokens=30)
    assert [reply.status_code for reply in replies] == [200, 500, 200]
    assert all(reply.json()["generated_text"] == SCRIPT for reply in (replies[0], replies[2], after))
    assert lines.status_code == 500
    assert lines.json()["error"]["type"] == "internal_error"
    assert "secret" not in replies[1].text + lines.text
    assert "secret" in caplog.text


async def test_a_failure_in_the_middle_of_a_stream_is_its_one_terminal_event(connect: Any) -> None:
    # The scripted model says "bad" itself after a while, and breaks there.
    async with connect(fake_models(FakeLanguage(script="all bad things", poison="|all bad"))) as client:
        lines = events(await post(client, stream=True, max_new_tokens=30))
    assert "".join(line["token"]["text"] for line in lines[:-1]) == "all bad"
    assert lines[-1]["error"]["code"] == "non_finite_output"
    assert all(line["details"] is None for line in lines[:-1])


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"return_state": True, "parameters": {"decode": "attention"}}, "parameters.decode", "no_state"),
        ({"return_state": True, "parameters": {"n": 2}}, "parameters.n", "no_state"),
        ({"state": "session:a", "parameters": {"n": 2}}, "parameters.n", "no_state"),
        ({"parameters": {"max_new_tokens": 51}}, "parameters.max_new_tokens", "too_large"),
        ({"inputs": "a" * 101}, "inputs", "prompt_too_long"),
        ({"inputs": "a" * 20, "parameters": {"decode": "attention", "max_new_tokens": 31}}, "parameters.max_new_tokens",
         "context_too_long"),
        ({"parameters": {"return_latents": True, "n": 16, "max_new_tokens": 50}}, "parameters", "reply_too_large"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_limits_of_the_server(connect: Any, body: dict[str, Any], param: str, code: str, stream: bool) -> None:
    body = {"inputs": "a", "parameters": {"max_new_tokens": 5}, **body, "stream": stream}
    limits = {"max_new_tokens": 50, "max_prompt_tokens": 100, "max_attention_tokens": 50, "max_reply_numbers": 5000}
    async with connect(**limits) as client:
        response = await client.post("/generate", json=body)
    assert response.status_code == 422
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == (param, code)


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"decode": "attention", "temperature": 0}, "decode", "decode belongs inside parameters"),
        ({"parameters": {"seed": 1, "stream": True}}, "parameters.stream", "stream belongs at the top level"),
        ({"parameters": {"hurry": True}}, "parameters.hurry", "parameters.hurry: Unknown field."),
    ],
)
async def test_a_field_in_the_wrong_place_is_reported_its_own(
    connect: Any, body: dict[str, Any], param: str, said: str
) -> None:
    async with connect() as client:
        response = await client.post("/generate", json={"inputs": "a", **body})
    error = read(ErrorReply, response.content).error
    assert (response.status_code, error.param, error.code) == (422, param, "extra_forbidden")
    assert said in error.message


async def test_an_unknown_model_is_reported_which_exist(connect: Any) -> None:
    async with connect() as client:
        response = await client.post("/generate", json={"inputs": "a", "model": "nope"})
        wrong_kind = await client.post("/generate", json={"inputs": "a", "model": "mean"})
    assert response.status_code == wrong_kind.status_code == 404
    assert response.json()["error"] == {
        "message": "model must be the name of a language model on this server: 'recite'.",
        "type": "not_found",
        "param": "model",
        "code": "model_not_found",
    }
