"""Bundles loaded anew while requests run: the old ones end what they began, a bad new one changes nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from export.bundle import BundleError
from service.app import create_app
from service.engine.engine import ModelFacts, Models
from service.settings import Settings
from service.testing import FakeFilter, FakeLanguage

pytestmark = pytest.mark.anyio


def models(script: str, digest: str, gate: threading.Semaphore | None = None) -> Models:
    language, filter_model = FakeLanguage(script=script, sureness=0.999999, gate=gate), FakeFilter()
    return Models(
        {"recite": language},
        {"mean": filter_model},
        [ModelFacts("recite", "lm", digest * 64, 1), ModelFacts("mean", "filter", digest * 64, 1)],
    )


async def text(client: Any, **fields: Any) -> Any:
    body = {"inputs": "|", "parameters": {"max_new_tokens": 6}, **fields}
    return (await client.post("/generate", json=body)).json()


@asynccontextmanager
async def served(*rounds: Models | Exception, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that finds one set of models after another where its bundles are, or a bad one."""
    coming = list(rounds)

    def load(_: Settings) -> Models:
        found = coming.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    app = create_app(Settings(**{"bundles": (), "processes": 1, "workers": 1, **settings}), load)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.app = app  # type: ignore[attr-defined]
            yield client


async def test_new_requests_get_the_new_bundle_and_running_ones_keep_theirs() -> None:
    gate = threading.Semaphore(2)
    async with served(models("aaaaaa", "1", gate), models("bbbbbb", "2")) as client:
        running = asyncio.ensure_future(text(client))
        async with asyncio.timeout(10):
            while gate.acquire(blocking=False):
                gate.release()
                await asyncio.sleep(0.001)
        await client.app.state.reload()
        digests = {model["digest"][0] for model in (await client.get("/info")).json()["models"]}
        gate.release(100)
        assert (await running)["generated_text"] == "aaaaaa"
        assert (await text(client))["generated_text"] == "bbbbbb"
        assert digests == {"2"}
        assert (await client.get("/ready")).status_code == 200


async def test_a_refused_bundle_leaves_the_old_one_at_work() -> None:
    async with served(models("aaaaaa", "1"), BundleError("golden outputs differ"), models("bbbbbb", "2")) as client:
        with pytest.raises(BundleError):
            await client.app.state.reload()
        assert (await text(client))["generated_text"] == "aaaaaa"
        await client.app.state.reload()
        assert (await text(client))["generated_text"] == "bbbbbb"


async def test_a_state_of_the_old_bundle_is_not_one_of_the_new() -> None:
    async with served(models("aaaaaa", "1"), models("bbbbbb", "2")) as client:
        state = (await text(client, return_state=True))["state"]
        await client.app.state.reload()
        assert (await text(client, inputs="", state=state))["error"]["code"] == "state_invalid"


async def test_a_request_between_the_bundles_is_sent_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(models("aaaaaa", "1"), models("bbbbbb", "2"), sessions="memory") as client:
        first = await text(client, return_state="session:tale")
        keeper, load = client.app.state.keeper, type(client.app.state.keeper).load

        async def load_during_reload(*arguments: Any) -> Any:
            await client.app.state.reload()
            return await load(keeper, *arguments)

        monkeypatch.setattr(keeper, "load", load_during_reload)
        body = {"inputs": "", "parameters": {"max_new_tokens": 1}, "state": first["state"]}
        reply = await client.post("/generate", json=body)
        assert reply.status_code == 503 and "Retry-After" in reply.headers, json.dumps(reply.json())
