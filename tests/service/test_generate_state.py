"""`state` and `return_state` of /generate: tokens, named sessions, forks, and who may not go on."""

from __future__ import annotations

import base64
import json
import secrets
from typing import Any

import httpx
import pytest

from tests.service.models import FakeLanguage, fake_models

pytestmark = pytest.mark.anyio
SAMPLED = {"temperature": 1.0, "seed": 7}


def models() -> Any:
    return fake_models(FakeLanguage(script="the quick brown fox", sureness=0.5))


async def post(client: httpx.AsyncClient, inputs: str, tokens: int, status: int = 200, **fields: Any) -> Any:
    parameters = {"max_new_tokens": tokens, **fields.pop("parameters", SAMPLED)}
    response = await client.post("/generate", json={"inputs": inputs, "parameters": parameters, **fields})
    assert response.status_code == status, response.text
    return response.json() if status == 200 else response.json()["error"]


async def test_a_token_goes_on_also_in_another_process(connect: Any) -> None:
    keys = {"state_keys": base64.b64encode(secrets.token_bytes(32)).decode()}
    async with connect(models(), **keys) as client, connect(models(), **keys) as other:
        whole = await post(client, "say |", 12)
        first = await post(client, "say |", 5, return_state=True)
        assert first["state"].startswith("v1.") and whole["state"] is None
        # The seed goes with the state.
        second = await post(other, "", 7, state=first["state"], parameters={"temperature": 1.0})
    assert first["generated_text"] + second["generated_text"] == whole["generated_text"]
    assert first["details"]["tokens"] + second["details"]["tokens"] == whole["details"]["tokens"]
    assert second["state"] is None and second["details"]["seed"] == 7


async def test_a_token_may_be_continued_twice(connect: Any) -> None:
    async with connect(models()) as client:
        first = await post(client, "say |", 3, return_state=True)
        again = [await post(client, "", 9, state=first["state"]) for _ in range(2)]
        fork = await post(client, "", 9, state=first["state"], parameters={"temperature": 1.0, "seed": 8})
        several = await post(client, "", 9, state=first["state"], parameters={**SAMPLED, "n": 3})
    assert again[0]["details"]["tokens"] == again[1]["details"]["tokens"] != fork["details"]["tokens"]
    assert len({continuation["generated_text"] for continuation in several["continuations"]}) == 3
    assert several["details"]["tokens"] == again[0]["details"]["tokens"]


async def test_a_stream_ends_with_the_state(connect: Any) -> None:
    async with connect(models()) as client:
        whole = await post(client, "say |", 6)
        body = {
            "inputs": "say |", "parameters": {"max_new_tokens": 2, **SAMPLED}, "stream": True, "return_state": True
        }  # fmt: skip
        response = await client.post("/generate", json=body)
        lines = [json.loads(line[6:]) for line in response.text.split("\n\n") if line]
        assert [line["state"] is not None for line in lines] == [False, True]
        rest = await post(client, "", 4, state=lines[-1]["state"])
    assert lines[-1]["generated_text"] + rest["generated_text"] == whole["generated_text"]


async def test_a_session_is_made_continued_and_never_forked(connect: Any) -> None:
    async with connect(models(), sessions="memory") as client:
        whole = await post(client, "say |", 12)
        first = await post(client, "say |", 5, return_state="session:tale")
        assert first["state"] == f"session:tale@{len('say |') - 1 + 5}"
        second = await post(client, "", 4, state="session:tale")
        third = await post(client, "", 3, state=second["state"])
        assert "".join(part["generated_text"] for part in (first, second, third)) == whole["generated_text"]
        moved = await post(client, "", 3, status=409, state=second["state"])
        assert (moved["type"], moved["code"]) == ("conflict", "session_moved")
        exists = await post(client, "a", 3, status=409, return_state="session:tale")
        assert exists["code"] == "session_exists"
        missing = await post(client, "", 3, status=404, state="session:other")
        assert missing["code"] == "session_not_found"


async def test_a_state_of_another_deployment_model_or_shape_is_refused_alike(connect: Any) -> None:
    async with connect(models()) as client, connect(models()) as stranger:
        token = (await post(client, "say |", 1, return_state=True))["state"]
        refusals = [
            await post(stranger, "", 1, status=422, state=token),
            await post(client, "", 1, status=422, state=token[:-1] + ("A" if token[-1] != "A" else "B")),
            await post(client, "", 1, status=422, state="v1."),
            await post(client, "", 1, status=422, state="nonsense"),
        ]
    assert len({json.dumps(refusal) for refusal in refusals}) == 1
    assert (refusals[0]["param"], refusals[0]["code"]) == ("state", "state_invalid")


async def test_sessions_are_off_until_switched_on(connect: Any) -> None:
    async with connect(models()) as client:
        refusal = await post(client, "a", 1, status=422, return_state="session:a")
        assert (refusal["param"], refusal["code"]) == ("return_state", "sessions_off")


async def test_a_state_belongs_to_the_api_key_that_it_was_given_to(connect: Any) -> None:
    keys = [secrets.token_hex(16) for _ in range(2)]
    body = {"inputs": "say |", "parameters": {"max_new_tokens": 1}}
    async with connect(models(), api_keys=",".join(keys), sessions="memory") as client:

        async def ask(key: str, **fields: Any) -> httpx.Response:
            return await client.post("/generate", json={**body, **fields}, headers={"X-API-Key": key})

        token = (await ask(keys[0], return_state=True)).json()["state"]
        await ask(keys[0], return_state="session:tale")
        assert (await ask(keys[0], state=token)).status_code == 200
        assert (await ask(keys[1], state=token)).json()["error"]["code"] == "state_invalid"
        assert (await ask(keys[0], state="session:tale")).status_code == 200
        assert (await ask(keys[1], state="session:tale")).json()["error"]["code"] == "session_not_found"
        # The name is free for everybody else.
        assert (await ask(keys[1], return_state="session:tale")).status_code == 200
