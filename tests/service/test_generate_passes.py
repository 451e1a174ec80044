"""`passes` of requests for text: on every route, in any batch, with states and with the cache of prompts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest

from rfa.runtime.passes import PassesRange
from rfa.runtime.text.contexts import StepOutput
from rfa.service.engine.models import Models
from tests.service.conftest import Connect
from tests.service.models import FakeLanguage, Seen, SeenMore, fake_models

pytestmark = pytest.mark.anyio
PROMPT = "It was the best of times, it was the worst of times, it was the age of wisdom. "
TOKENS = 6


@dataclass
class SeenSoOften(Seen):
    passes: int = 3

    def fork(self) -> SeenSoOften:
        return SeenSoOften(self.tokens, self.noise, passes=self.passes)


class Reweighted(FakeLanguage):
    """Surer after more passes. As of a real model, a state does not tell their number."""

    def start(
        self, mode: str, *, capacity: int = 1, forks: int = 0, common: int = 0, passes: int | None = None
    ) -> SeenSoOften:
        return SeenSoOften(passes=passes or self.passes.most)

    def unpack(self, data: bytes, passes: int | None = None) -> SeenSoOften:
        seen = super().unpack(data)
        return SeenSoOften(seen.tokens, seen.noise, passes=passes or self.passes.most)

    def step(
        self, contexts: Sequence[Any], tokens: Sequence[int], noise: np.ndarray
    ) -> tuple[StepOutput, list[SeenMore]]:
        output, advanced = super().step(contexts, tokens, noise)
        passes = np.array([[context.passes] for context in contexts], np.float32)
        return output._replace(logits=passes * output.logits), advanced


@pytest.fixture
def models() -> Models:
    return fake_models(Reweighted(name="passes", passes=PassesRange(1, 3), sureness=0.3))


async def post(client: httpx.AsyncClient, path: str, body: Any, status: int = 200) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json() if status == 200 else response.json()["error"]


def generate_body(passes: int | None, **fields: Any) -> dict[str, Any]:
    parameters = {"max_new_tokens": TOKENS, "temperature": 0, "passes": passes}
    return {"inputs": PROMPT, "parameters": parameters, **fields}


async def generated(client: httpx.AsyncClient, passes: int | None, **fields: Any) -> list[tuple[int, float]]:
    """The tokens of /generate with their log probabilities, which depend on the number of passes."""
    reply = await post(client, "/generate", generate_body(passes, **fields))
    return [(token["id"], token["logprob"]) for token in reply["details"]["tokens"]]


async def test_every_route_accepts_it(connect: Connect, models: Models) -> None:
    async with connect(models) as client:
        one, two, three, usual = [await generated(client, passes) for passes in (1, 2, 3, None)]
        assert one != two != three == usual and one != three
        for passes, expected in ((1, one), (3, three)):
            text = (await client.post("/generate_stream", json=generate_body(passes, stream=True))).text
            events = [json.loads(line[5:]) for line in text.splitlines() if line]
            assert [(event["token"]["id"], event["token"]["logprob"]) for event in events] == expected
            tgi = generate_body(passes)
            tgi["parameters"]["details"] = True
            reply = await post(client, "/", tgi)
            assert [(token["id"], token["logprob"]) for token in reply["details"]["tokens"]] == expected
            body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "logprobs": 0, "passes": passes}
            (choice,) = (await post(client, "/v1/completions", body))["choices"]
            logprobs = choice["logprobs"]
            assert list(zip(logprobs["token_ids"], logprobs["token_logprobs"], strict=True)) == expected
            lines = (await client.post("/v1/completions", json={**body, "stream": True})).text.splitlines()
            chunks = [json.loads(line[5:])["choices"][0] for line in lines if line and line != "data: [DONE]"]
            assert [chunk["logprobs"]["token_logprobs"][0] for chunk in chunks] == [value for _, value in expected]


async def test_scores_and_dialogues_depend_on_it(connect: Connect, models: Models) -> None:
    message = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3, "temperature": 0, "logprobs": True}
    async with connect(models) as client:
        scores, dialogues = [], []
        for passes in (1, 3, None):
            (score,) = (await post(client, "/score", {"inputs": PROMPT, "passes": passes}))["scores"]
            scores.append(score["logprobs"])
            (choice,) = (await post(client, "/v1/chat/completions", {**message, "passes": passes}))["choices"]
            dialogues.append(choice["logprobs"])
        body = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 0, "passes": 1}
        (echoed,) = (await post(client, "/v1/completions", body))["choices"]
        lines = (await client.post("/score", json={"inputs": PROMPT, "passes": 1, "stream": True})).text.splitlines()
    for one, three, usual in (scores, dialogues):
        assert one != three == usual
    assert echoed["logprobs"]["token_logprobs"] == scores[0]
    assert [value for line in map(json.loads, lines) for value in line.get("logprobs", [])] == scores[0]


async def test_requests_with_other_numbers_change_nothing(connect: Connect, models: Models) -> None:
    async with connect(models) as client:
        alone = [await generated(client, passes) for passes in (1, 2, 3)]
        together = await asyncio.gather(*(generated(client, passes) for passes in (3, 1, 2, 1)))
    assert [*together] == [alone[2], alone[0], alone[1], alone[0]]


async def test_a_state_is_continued_with_any_number(connect: Connect, models: Models) -> None:
    async with connect(models) as client:
        whole = {passes: await generated(client, passes) for passes in (1, 3)}
        for passes in (1, 3):
            body = generate_body(passes, return_state=True)
            body["parameters"]["max_new_tokens"] = 2
            state = (await post(client, "/generate", body))["state"]
            rest = {then: await generated(client, then, inputs="", state=state) for then in (1, 3, None)}
            assert rest[passes][: TOKENS - 2] == whole[passes][2:]
            assert rest[None] == rest[3] != rest[1]


async def test_the_cache_of_prompts_keeps_them_apart(connect: Connect, models: Models) -> None:
    body = {"prompt": PROMPT * 8, "max_tokens": 4, "temperature": 0, "logprobs": 0}
    found = []
    for cache in (0, 1 << 20):
        async with connect(models, prefix_cache_bytes=cache) as client:
            replies = [
                await post(client, "/v1/completions", {**body, "passes": passes}) for passes in (1, 3, 1, 3, None)
            ]
            hits = (await client.get("/metrics")).text
        found.append([reply["choices"][0]["logprobs"] for reply in replies])
        tokens = replies[0]["usage"]["prompt_tokens"] - 1
        assert f'rfa_prefix_cache_hits_total{{model_name="passes"}} {3 * tokens if cache else 0}.0' in hits
    assert found[0] == found[1] and found[0][0] != found[0][1]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/generate", {"inputs": "a", "parameters": {"passes": 4}}, "parameters.passes"),
        ("/v1/completions", {"prompt": "a", "passes": 4}, "passes"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "passes": 4}, "passes"),
        ("/score", {"inputs": "a", "passes": 4}, "passes"),
    ],
)
async def test_a_number_that_the_model_lacks_is_refused(
    connect: Connect, models: Models, path: str, body: Any, param: str
) -> None:
    async with connect(models) as client:
        refusal = await post(client, path, body, 422)
        assert (refusal["param"], refusal["code"]) == (param, "out_of_range")
        assert refusal["message"] == f"{param} of model 'passes' must be between 1 and 3"
        changed = json.loads(json.dumps(body).replace('"passes": 4', '"passes": 0'))
        assert (await post(client, path, changed, 422))["param"] == param
        attention = json.loads(json.dumps(body).replace('"passes": 4', '"passes": 3, "decode": "attention"'))
        refusal = await post(client, path, attention, 422)
        assert refusal["message"] == f'{param} requires decode "recurrent"; leave it out for decode "attention".'
        for streamed in ({**body, "stream": True},):
            assert (await post(client, path, streamed, 422))["param"] == param


async def test_a_model_with_one_number_accepts_that(connect: Connect) -> None:
    body = {"inputs": "say |", "parameters": {"max_new_tokens": 3, "temperature": 0}}
    async with connect(fake_models(FakeLanguage())) as client:
        usual = await post(client, "/generate", body)
        body["parameters"]["passes"] = 1
        assert (await post(client, "/generate", body))["generated_text"] == usual["generated_text"]
        body["parameters"]["passes"] = 2
        refusal = await post(client, "/generate", body, 422)
    assert refusal["message"] == "parameters.passes of model 'recite' must be 1, or null"
