"""Bundles loaded anew while requests run: the old ones end what they began, a bad new one changes nothing."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any, cast

import httpx
import pytest

from rfa.service.bundle_version import bundle_version
from rfa.service.engine.models import Models
from tests.service.live import connected
from tests.service.models import FakeFilter, FakeLanguage, model_info
from tests.waiting import until

pytestmark = pytest.mark.anyio


def models(script: str, digest: str, gate: threading.Semaphore | None = None) -> Models:
    language, filter_model = FakeLanguage(script=script, sureness=0.999999, gate=gate), FakeFilter()
    return Models(
        {"recite": cast(Any, language)},
        {"mean": cast(Any, filter_model)},
        [model_info("recite", "lm", digest * 64), model_info("mean", "filter", digest * 64)],
    )


async def text(client: Any, **fields: Any) -> Any:
    body = {"inputs": "|", "parameters": {"max_new_tokens": 6}, **fields}
    return (await client.post("/generate", json=body)).json()


def stage(client: Any, models: Models, is_due: Callable[[], bool] = lambda: True) -> None:
    """Have other models ready."""
    engine = client.app.state.engine
    engine.stage(engine.build(models), is_due)


def is_taken(gate: threading.Semaphore) -> bool:
    """Whether whoever waits at the gate has taken all that it let pass."""
    if is_left := gate.acquire(blocking=False):
        gate.release()
    return not is_left


async def version(client: httpx.AsyncClient) -> str:
    return str((await client.get("/info")).json()["bundle_version"])


async def test_new_requests_get_the_new_bundle_and_running_ones_keep_theirs() -> None:
    gate = threading.Semaphore(2)
    async with connected(models("aaaaaa", "1", gate)) as client:
        running = asyncio.ensure_future(text(client))
        await until(lambda: is_taken(gate))
        stage(client, models("bbbbbb", "2"))
        digests = {model["digest"][0] for model in (await client.get("/info")).json()["models"]}
        gate.release(100)
        assert (await running)["generated_text"] == "aaaaaa"
        assert (await text(client))["generated_text"] == "bbbbbb"
        assert digests == {"2"}
        assert (await client.get("/ready")).status_code == 200


async def test_what_is_staged_is_served_from_the_very_request_that_finds_it_due() -> None:
    due: list[bool] = []
    async with connected(models("aaaaaa", "1")) as client:
        first = await version(client)
        stage(client, models("bbbbbb", "2"), lambda: bool(due))
        assert (await text(client))["generated_text"] == "aaaaaa" and await version(client) == first
        due.append(True)
        assert (await text(client))["generated_text"] == "bbbbbb"
        second = await version(client)
        assert second != first
        samples = re.findall(r'rfa_bundle_version_info\{version="(\w+)"\} (\S+)', (await client.get("/metrics")).text)
        assert samples == [(second, "1.0")]


async def test_what_was_staged_and_abandoned_is_never_served() -> None:
    async with connected(models("aaaaaa", "1")) as client:
        stage(client, models("bbbbbb", "2"))
        client.app.state.engine.abandon()  # type: ignore[attr-defined]
        assert (await text(client))["generated_text"] == "aaaaaa"


async def test_a_state_of_the_old_bundle_is_not_one_of_the_new() -> None:
    async with connected(models("aaaaaa", "1")) as client:
        state = (await text(client, return_state=True))["state"]
        stage(client, models("bbbbbb", "2"))
        assert (await text(client, inputs="", state=state))["error"]["code"] == "state_invalid"


async def test_a_request_between_the_bundles_is_answered_as_if_it_had_come_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected(models("aaaaaa", "1"), sessions="memory") as client:
        first = await text(client, return_state="session:tale")
        keeper = client.app.state.keeper  # type: ignore[attr-defined]
        load, check_new = type(keeper).load, type(keeper).check_new

        async def load_during_reload(*arguments: Any) -> Any:
            stage(client, models("bbbbbb", "2"))
            client.app.state.engine.switch_when_due()  # type: ignore[attr-defined]
            return await load(keeper, *arguments)

        async def check_new_during_reload(*arguments: Any) -> None:
            await check_new(keeper, *arguments)
            stage(client, models("cccccc", "3"))
            client.app.state.engine.switch_when_due()  # type: ignore[attr-defined]
            monkeypatch.undo()

        with monkeypatch.context() as patch:
            patch.setattr(keeper, "load", load_during_reload)
            body = {"inputs": "", "parameters": {"max_new_tokens": 1}, "state": first["state"]}
            reply = await client.post("/generate", json=body)
        # A session belongs to its bundle.
        assert reply.status_code == 404 and reply.json()["error"]["code"] == "session_not_found"
        monkeypatch.setattr(keeper, "check_new", check_new_during_reload)
        assert (await text(client, return_state="session:other"))["generated_text"] == "cccccc"
        # ... and it was stored under the new one.
        monkeypatch.undo()
        assert (await text(client, inputs="", state="session:other"))["state"].startswith("session:other@")


@pytest.mark.parametrize("digests", [("1", "2"), ("2", "1"), ("1",), ()])
def test_a_version_is_of_all_bundles_and_of_their_order(digests: tuple[str, ...]) -> None:
    """The first of a kind answers requests that name none."""
    others = {("1", "2"), ("2", "1"), ("1",), (), ("12",)} - {digests}
    assert bundle_version(digests) not in {bundle_version(other) for other in others}
    assert re.fullmatch("[0-9a-f]{12}", bundle_version(digests))
