"""Scores of prompts: /score, `echo` with `logprobs`, `prompt_logprobs`, `decoder_input_details`; and the tokenizer."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.service.schemas.openai import Completion
from rfa.service.schemas.score import ScoreDone, ScoredPiece, ScoreReply
from rfa.service.schemas.text_replies import GenerateReply
from rfa.service.schemas.tokenizer import DetokenizeReply, TokenizeReply, TokenizerInfo
from tests.service.models import FakeLanguage, byte_vocabulary, fake_models
from tests.service.replies import read

pytestmark = pytest.mark.anyio
LISTS = ("token_ids", "tokens", "logprobs", "ranks", "entropies", "confidences", "tails", "top_logprobs")
TEXT = "say |the quack brown fox — né"


async def ask(client: httpx.AsyncClient, path: str, status: int = 200, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json() if status == 200 else response.json()["error"]


async def lines(client: httpx.AsyncClient, **body: Any) -> list[Any]:
    response = await client.post("/score", json={**body, "stream": True})
    assert response.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in response.text.splitlines()]


def columns(parts: list[Any]) -> dict[str, list[Any]]:
    return {name: [item for part in parts for item in part[name] or []] for name in LISTS}


async def test_the_probabilities_are_those_of_the_script(connect: Any) -> None:
    async with connect() as client:
        response = await client.post("/score", json={"inputs": "say |tha", "top_n_tokens": 2})
    reply = read(ScoreReply, response.content)
    (text,) = reply.scores
    likely, other = math.log(0.9), math.log(0.1 / 256)
    assert text.tokens == list("say |tha") and text.first == text.index == 0
    # Without a `|` the model says "t"; behind it the script.
    expected = [None, other, other, other, other, likely, likely, other]
    assert text.logprobs == [None, *(pytest.approx(number, abs=1e-6) for number in expected[1:])]
    assert text.ranks[5:7] == [1, 1] and text.ranks[7] > 1
    assert text.confidences[5] == pytest.approx(0.9, abs=1e-6)
    assert text.tails[5] == pytest.approx(1) and text.tails[7] == pytest.approx(0.1, rel=1e-4)
    entropy = -(0.9 * likely + 0.1 * other)
    assert text.entropies[1:] == [pytest.approx(entropy, rel=1e-4)] * 7
    assert text.top_logprobs is not None and text.top_logprobs[7] is not None
    assert next(iter(text.top_logprobs[7])) == "e" and len(text.top_logprobs[7]) == 2
    assert text.log_likelihood == math.fsum(number for number in text.logprobs if number is not None)
    assert (text.scored_tokens, text.scored_bytes, text.state) == (7, 7, None)


@pytest.mark.parametrize("size", [1, 3, 64])
async def test_a_stream_has_the_scores_of_the_plain_reply(connect: Any, size: int) -> None:
    vocabulary = byte_vocabulary()
    inputs = [*map(vocabulary.encode, (TEXT, "x", "say |the", "é")), [84, 105, 0, 33]]
    async with connect(fake_models(FakeLanguage(prefill_tokens=size)), stream_buffer=3) as client:
        plain = await ask(client, "/score", inputs=inputs, top_n_tokens=1)
        *pieces, last = await lines(client, inputs=inputs, top_n_tokens=1)
    for piece in pieces:
        read(ScoredPiece, json.dumps(piece))
    read(ScoreDone, json.dumps(last))
    for index, whole in enumerate(plain["scores"]):
        own = [piece for piece in pieces if piece["index"] == index]
        assert columns(own) == columns([whole])
        assert [piece["first"] for piece in own] == np.cumsum(
            [0, *(len(piece["tokens"]) for piece in own[:-1])]
        ).tolist()
        assert last["scores"][index] == {name: whole[name] for name in last["scores"][index]}


async def test_a_text_in_two_requests_has_the_scores_of_one(connect: Any) -> None:
    async with connect(sessions="memory") as client:
        whole = (await ask(client, "/score", inputs=TEXT, return_state=True))["scores"][0]
        first = (await ask(client, "/score", inputs=TEXT[:9], return_state=True))["scores"][0]
        second = (await ask(client, "/score", inputs=TEXT[9:], state=first["state"]))["scores"][0]
        *pieces, last = await lines(client, inputs=TEXT[9:], state=first["state"], return_state="session:log")
        named = (await ask(client, "/score", inputs="!", state="session:log"))["scores"][0]
        beyond = (await ask(client, "/score", inputs=TEXT + "!"))["scores"][0]
        generated = await ask(
            client, "/v1/completions", prompt="", state=whole["state"], max_tokens=3, temperature=0, logprobs=0
        )
        at_once = await ask(client, "/v1/completions", prompt=TEXT, max_tokens=3, temperature=0, logprobs=0)
    assert columns([first, second]) == columns([whole]) == columns([first, *pieces])
    assert second["logprobs"][0] is not None and second["scored_tokens"] == len(second["tokens"])
    assert last["scores"][0]["state"].startswith("session:log@")
    assert named["logprobs"] == beyond["logprobs"][-1:]
    assert generated["choices"][0]["logprobs"] == at_once["choices"][0]["logprobs"]


@pytest.mark.parametrize("decode", ["recurrent", "attention"])
@pytest.mark.parametrize("stream", [False, True])
async def test_echo_tells_of_the_prompt_what_decoding_tells(connect: Any, decode: str, stream: bool) -> None:
    options: dict[str, Any] = {"temperature": 8.0, "seed": 5, "logprobs": 2, "decode": decode}
    async with connect(fake_models(FakeLanguage(sureness=0.4))) as client:
        made = (await ask(client, "/v1/completions", prompt="say |", max_tokens=20, **options))["choices"][0][
            "logprobs"
        ]
        ids = [*byte_vocabulary().encode("say |"), *made["token_ids"]]
        body = {"prompt": ids, "max_tokens": 2, "echo": True, "stream": stream, **options}
        response = await client.post("/v1/completions", json=body)
        read_only = await ask(client, "/v1/completions", **{**body, "max_tokens": 0, "stream": False})
        plain = await ask(client, "/v1/completions", **{**body, "echo": False, "stream": False})
    if stream:
        parts = [json.loads(line[6:])["choices"][0] for line in response.text.split("\n\n")[:-2]]
    else:
        parts = response.json()["choices"]
    echoed = {
        name: [item for part in parts for item in part["logprobs"][name]] for name in made if name != "text_offset"
    }
    for name, values in echoed.items():
        assert values[5 : len(ids)] == made[name], name
        assert values[: len(ids)] == read_only["choices"][0]["logprobs"][name]
        assert values[len(ids) :] == plain["choices"][0]["logprobs"][name]
    assert echoed["token_logprobs"][0] is echoed["top_logprobs"][0] is None
    assert read_only["usage"]["completion_tokens"] == 0 and read_only["choices"][0]["finish_reason"] == "length"
    assert all(len(top) in (2, 3) for top in echoed["top_logprobs"][1:])


@pytest.mark.parametrize("prompt", [TEXT, "né<|endoftext|>é", list("€é".encode()), [159, 159, 66, 67], ""])
@pytest.mark.parametrize("temperature", [0, 50.0])
async def test_offsets_are_those_of_the_characters(connect: Any, prompt: Any, temperature: float) -> None:
    async with connect(fake_models(FakeLanguage(script="né € fox"))) as client:
        for seed in range(8):
            options: dict[str, Any] = {"temperature": temperature, "seed": seed, "logprobs": 0, "ignore_eos": True}
            body = {"prompt": prompt, "echo": True, "max_tokens": 8, **options}
            choice = (await ask(client, "/v1/completions", **body))["choices"][0]
            vocabulary, found, count = byte_vocabulary(), choice["logprobs"], len(choice["logprobs"]["token_ids"]) - 8
            named = isinstance(prompt, str) and prompt != ""
            parts = [
                b"<|endoftext|>" if token == 0 and named and place < count else vocabulary.bytes_of(token)
                for place, token in enumerate(found["token_ids"])
            ]
            before = len(b"".join(parts[:count]).decode(errors="replace"))
            expected = [*offsets(parts[:count]), *(before + offset for offset in offsets(parts[count:]))]
            assert found["text_offset"] == expected


def offsets(parts: list[bytes]) -> list[int]:
    """Of each part: characters of the whole that end before it."""
    data, found = b"".join(parts), []
    for start in np.cumsum([0, *map(len, parts)])[:-1]:
        left, right = (part.decode(errors="replace") for part in (data[:start], data[start:]))
        found.append(len(left) - (left + right != data.decode(errors="replace")))
    return found


async def test_prompt_logprobs_and_decoder_input_details_have_the_same_numbers(connect: Any) -> None:
    async with connect() as client:
        scored = (await ask(client, "/score", inputs=TEXT, top_n_tokens=2))["scores"][0]
        response = await client.post("/v1/completions", json={"prompt": TEXT, "prompt_logprobs": 2, "max_tokens": 1})
        details = {"decoder_input_details": True, "max_new_tokens": 1, "do_sample": False}
        tgi = await client.post("/generate", json={"inputs": TEXT, "parameters": details})
        default = await client.post("/generate", json={"inputs": TEXT, "parameters": {"max_new_tokens": 1}})
    choice = read(Completion, response.content).choices[0]
    assert choice.logprobs is None and choice.prompt_logprobs is not None and choice.prompt_logprobs[0] is None
    ids, prompt = scored["token_ids"], response.json()["choices"][0]["prompt_logprobs"]
    assert [one[str(token)]["logprob"] for one, token in zip(prompt[1:], ids[1:], strict=True)] == scored["logprobs"][
        1:
    ]
    assert [one[str(token)]["rank"] for one, token in zip(prompt[1:], ids[1:], strict=True)] == scored["ranks"][1:]
    assert all({1, 2} <= {entry["rank"] for entry in one.values()} for one in prompt[1:])
    reply = read(GenerateReply, tgi.content)
    assert reply.details is not None
    assert [token.logprob for token in reply.details.prefill] == scored["logprobs"]
    assert [token.id for token in reply.details.prefill] == ids
    assert default.json()["details"]["prefill"] == []
    assert default.json()["details"]["tokens"] == tgi.json()["details"]["tokens"]


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/score", {"inputs": ["a", "b"], "return_state": True}, "inputs", "no_state"),
        ("/score", {"inputs": "a", "return_state": True, "decode": "attention"}, "decode", "no_state"),
        ("/score", {"inputs": [[1], [257]]}, "inputs[1]", "unknown_token"),
        ("/score", {"inputs": "a" * 101}, "inputs", "prompt_too_long"),
        ("/score", {"inputs": "a" * 90, "top_n_tokens": 20}, "inputs", "reply_too_large"),
        ("/score", {"inputs": []}, "inputs", "no_member"),
        ("/score", {"inputs": "a", "top_n_tokens": 21}, "top_n_tokens", "less_than_equal"),
        ("/score", {"inputs": ["a"] * 20}, "inputs", "too_large"),
        ("/v1/completions", {"prompt": ["a", "b"], "return_state": True}, "prompt", "no_state"),
        ("/v1/completions", {"prompt": "a", "n": 2, "return_state": True}, "n", "no_state"),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not_supported"),
        ("/v1/completions", {"prompt": "a" * 90, "prompt_logprobs": 20}, "prompt", "reply_too_large"),
        ("/generate", {"inputs": "a", "stream": True, "parameters": {"decoder_input_details": True}},
         "parameters.decoder_input_details", "not_supported"),
        ("/generate", {"inputs": "a", "parameters": {"decoder_input_details": True, "details": False}},
         "parameters.decoder_input_details", "needs_details"),
        ("/tokenize", {"prompt": "a" * 2001}, "prompt", "too_large"),
        ("/detokenize", {"tokens": [1, 257]}, "tokens", "unknown_token"),
    ],
)  # fmt: skip
async def test_what_is_refused(connect: Any, path: str, body: dict[str, Any], param: str, code: str) -> None:
    limits = {"max_prompt_tokens": 100, "max_reply_numbers": 2000, "max_running": 4, "max_waiting": 8}
    async with connect(**limits) as client:
        error = await ask(client, path, 422, **body)
    assert (error["param"], error["code"]) == (param, code)


async def test_a_broken_text_fails_alone(connect: Any) -> None:
    async with connect(fake_models(FakeLanguage(poison="bad")), workers=1) as client:
        good, bad = await asyncio.gather(
            ask(client, "/score", inputs="good text"), ask(client, "/score", 500, inputs="bad text")
        )
    assert bad["code"] == "non_finite_output" and good["scores"][0]["scored_tokens"] == 8


async def test_the_tokenizer(connect: Any) -> None:
    text = "né |" * 2000
    async with connect() as client:
        response = await client.post("/tokenize", json={"prompt": text, "return_token_strs": True})
        tokens = read(TokenizeReply, response.content)
        back = await client.post("/detokenize", json={"tokens": tokens.tokens})
        info = read(TokenizerInfo, (await client.get("/tokenizer_info")).content)
        missing = await client.get("/tokenizer_info", params={"model": "nope"})
    assert tokens.tokens == byte_vocabulary().encode(text) and tokens.count == len(tokens.tokens)
    assert tokens.token_strs is not None and tokens.token_strs[:3] == ["n", "bytes:\\xc3", "bytes:\\xa9"]
    assert read(DetokenizeReply, back.content).prompt == text
    assert (info.eos_token, info.eos_token_id, info.vocab_size, info.model) == ("<|endoftext|>", 0, 257, "recite")
    assert missing.status_code == 404


async def test_a_bundle_scores_what_it_generates_alone_and_in_company(connect: Any, books_bundle: Path) -> None:
    from rfa.runtime.text.loading import load_on_cpu

    model: Any = load_on_cpu(open_bundle(books_bundle), "auto", 64, 24)
    async with connect(fake_models(model), workers=2) as client:

        async def generate(seed: int) -> Any:
            options: dict[str, Any] = {"temperature": 1.0, "seed": seed, "logprobs": 3, "max_tokens": 40}
            return (await ask(client, "/v1/completions", prompt="It was the", **options))["choices"][0]["logprobs"]

        made = await asyncio.gather(*map(generate, range(4)))
        texts = [[*model.vocabulary.encode("It was the"), *one["token_ids"]] for one in made]
        alone = [(await ask(client, "/score", inputs=text, top_n_tokens=3))["scores"][0] for text in texts]
        together = (await ask(client, "/score", inputs=texts, top_n_tokens=3))["scores"]
        states = [(await ask(client, "/score", inputs=text[:25], return_state=True))["scores"][0] for text in texts]
        rest = [
            (await ask(client, "/score", inputs=text[25:], state=state["state"], top_n_tokens=3))["scores"][0]
            for text, state in zip(texts, states, strict=True)
        ]
    assert [columns([one]) for one in together] == [columns([one]) for one in alone]
    for one, scored, after in zip(made, alone, rest, strict=True):
        assert scored["logprobs"][3:] == one["token_logprobs"]
        assert scored["confidences"][3:] == one["confidence"]
        assert [{**ours, name: number} for ours, name, number in zip(
            scored["top_logprobs"][3:], one["tokens"], one["token_logprobs"], strict=True
        )] == one["top_logprobs"]  # fmt: skip
        assert {name: scored[name][25:] for name in LISTS} == columns([after])
