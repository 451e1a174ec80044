"""What one client may use: buckets, quotas of keys, places of streams, and who is one client."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from rfa.service.access.keys import ApiKeys, load_keys
from rfa.service.access.quotas import BURST_SECONDS, Bucket, Clients
from rfa.service.errors import ErrorReply, Overloaded
from rfa.service.settings import ConfigurationError, Settings
from tests.service.models import FakeLanguage, fake_models
from tests.service.raw_asgi import asgi
from tests.service.replies import read
from tests.service.stream_socket import Socket, slots_are_free
from tests.waiting import until

KEY, OTHER = "first-key-of-sixteen-or-more", "second-key-of-sixteen-or-more"
BODY = {"inputs": "say |", "parameters": {"max_new_tokens": 3}}  # five tokens and three
NEVER = 0.01  # a second: of what is used, nothing comes back while a test runs


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def tenant(key: str) -> str:
    return "key-" + hashlib.sha256(key.encode()).hexdigest()[:16]


def of_key(key: str = KEY) -> dict[str, Any]:
    return {"state": {"tenant": tenant(key)}}


def from_address(host: str | None) -> dict[str, Any]:
    return {"client": None if host is None else (host, 5000)}


def clients(clock: Clock | None = None, keys: tuple[str, ...] = (KEY, OTHER), **settings: Any) -> Clients:
    return Clients(Settings(bundles=(), **settings), ApiKeys(keys), clock=clock or Clock())


def headers(key: str = KEY) -> dict[str, str]:
    return {"X-API-Key": key}


def check_refused(response: Any, quota: str) -> int:
    """An answer in the one shape; its Retry-After."""
    error = read(ErrorReply, response.content).error
    assert (response.status_code, error.type, error.code) == (429, "overloaded", f"quota_{quota}")
    return int(response.headers["retry-after"])


class TestBucket:
    def test_a_quiet_client_has_a_burst_and_then_the_rate(self) -> None:
        clock = Clock()
        bucket = Bucket(2.0, clock)
        taken = 0
        while not bucket.seconds_until(1):
            bucket.take(1)
            taken += 1
        assert taken == 2.0 * BURST_SECONDS
        assert bucket.seconds_until(1) == 0.5
        for _ in range(1000):
            clock.now += 0.25
            if not bucket.seconds_until(1):
                bucket.take(1)
                taken += 1
        assert taken == 2.0 * BURST_SECONDS + 500
        clock.now += 1e6
        assert bucket.seconds_until(2.0 * BURST_SECONDS) == 0

    def test_what_is_more_than_a_bucket_waits_for_a_full_one_and_leaves_a_debt(self) -> None:
        clock = Clock()
        bucket = Bucket(10.0, clock)
        assert bucket.seconds_until(1000) == 0
        bucket.take(1000)
        assert bucket.seconds_until(1) == pytest.approx(90.1)
        clock.now += 95
        assert bucket.seconds_until(1000) == pytest.approx(5.0)
        bucket.take(-1000)
        assert bucket.seconds_until(1000) == 0

    @given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), max_size=60))
    def test_no_pattern_gets_more_than_rate_and_burst(self, pattern: list[tuple[float, int]]) -> None:
        clock = Clock()
        bucket, used, largest = Bucket(3.0, clock), 0, 0
        for pause, amount in pattern:
            clock.now += pause
            if not bucket.seconds_until(amount):
                bucket.take(amount)
                used, largest = used + amount, max(largest, amount)
        assert used <= 3.0 * (clock.now - 1000.0) + 3.0 * BURST_SECONDS + largest + 1e-6


class TestClients:
    def test_the_settings_hold_for_keys_without_words_of_their_own(self) -> None:
        keys = (f"{KEY} streams=2 requests=off", OTHER)
        table = clients(keys=keys, quota_streams=1, quota_requests=NEVER)

        with ExitStack() as held:
            for client, streams in ((table.client_for(of_key()), 2), (table.client_for(of_key(OTHER)), 1)):
                for _ in range(streams):
                    held.enter_context(client.stream())
                with pytest.raises(Overloaded, match=f"{streams} live streams"):
                    held.enter_context(client.stream())
        for _ in range(50):
            with table.client_for(of_key()).request(counts=True):
                pass

    @pytest.mark.parametrize(
        ("one", "two", "is_one_client"),
        [
            ("10.0.0.1", "10.0.0.1", True),
            ("10.0.0.1", "10.0.0.2", False),
            ("10.0.0.1", "::ffff:10.0.0.1", True),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
            ("2001:db8::1", "2001:db8:0:0:ffff:ffff:ffff:ffff", True),
            ("2001:db8::1", "2001:db8:0:1::1", False),
            ("2001:DB8::1", "2001:0db8:0000::1", True),
            (None, "", True),
            ("unknown", "x" * 10_000, True),
            ("127.0.0.1", None, False),
        ],
    )
    def test_an_address_is_one_client(self, one: str | None, two: str | None, is_one_client: bool) -> None:
        table = clients(keys=(), quota_streams=1)
        with table.client_for(from_address(one)).stream():
            if is_one_client:
                with pytest.raises(Overloaded, match="live streams"):
                    table.client_for(from_address(two)).stream().__enter__()
            else:
                with table.client_for(from_address(two)).stream():
                    pass
        with table.client_for(from_address(two)).stream():
            pass

    def test_addresses_without_streams_are_forgotten(self) -> None:
        table = clients(keys=())
        for number in range(1000):
            client = table.client_for(from_address(f"10.0.{number // 250}.{number % 250}"))
            with client.request(counts=True), client.stream():
                assert len(table._streams) == 1
        assert not table._streams


class TestKeysFile:
    def test_quotas_stand_behind_a_key(self, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        file.write_text(f"# clients\n{KEY}  requests=0.5 streams=10\ttokens=off  # no comment\n".replace("# no", ""))
        with pytest.raises(ConfigurationError, match="API key 1"):
            load_keys(Settings(bundles=(), api_keys_file=file))
        file.write_text(f"# clients\n{KEY}  requests=0.5 streams=10\ttokens=off \n{OTHER}\n")
        ring = load_keys(Settings(bundles=(), api_keys_file=file))
        assert ring.quotas == {tenant(KEY): {"requests": 0.5, "streams": 10.0, "tokens": None}, tenant(OTHER): {}}
        assert ring.tenant_of(KEY.encode()) == tenant(KEY) and ring.tenant_of(b"requests=0.5") is None

    @pytest.mark.parametrize(
        "behind",
        ["request=5", "requests", "requests=", "requests=0", "requests=-1", "requests=nan", "requests=inf",
         "requests=x", "requests=1e999", "requests=5 requests=6", "requests =5", "Requests=5",
         "requests=5,streams=1", "=5", "hunter2"],
    )  # fmt: skip
    def test_what_is_no_quota_does_not_start_and_is_not_shown(self, behind: str) -> None:
        with pytest.raises(ConfigurationError, match="API key 2") as refused:
            ApiKeys([OTHER, f"{KEY} {behind}"])
        assert KEY not in str(refused.value) and "hunter2" not in str(refused.value)


def see(request: Request) -> str:
    assert request.client is not None
    return request.client.host


@pytest.mark.anyio
class TestTheServer:
    async def test_requests_beyond_the_quota_are_reported_when_to_come_back(self, connect: Any) -> None:
        async with connect(api_keys=f"{KEY} requests={NEVER},{OTHER}") as client:
            assert (await client.get("/info", headers=headers())).status_code == 200
            for method, path in (("GET", "/info"), ("POST", "/generate"), ("GET", "/nope"), ("GET", "/metrics")):
                assert 90 < check_refused(await client.request(method, path, headers=headers()), "requests") <= 100
            handshake: dict[str, Any] = {"type": "websocket", "path": "/filter/stream", "scheme": "ws"}
            raw, extensions = [(b"x-api-key", KEY.encode())], {"websocket.http.response": {}}
            start, body = await asgi(client.app, **handshake, headers=raw, extensions=extensions)
            assert start["status"] == 429
            assert read(ErrorReply, body["body"]).error.code == "quota_requests"
            assert (await client.get("/info", headers=headers(OTHER))).status_code == 200
            assert (await client.get("/health", headers=headers())).status_code == 200
            counted = client.app.state.metrics.registry.get_sample_value
            assert counted("rfa_quota_refusals_total", {"quota": "requests"}) == 5

    async def test_requests_under_way_are_bounded(self, connect: Any) -> None:
        gate = threading.Semaphore(0)
        async with connect(fake_models(FakeLanguage(gate=gate)), api_keys=KEY, quota_concurrent=2) as client:
            ask = [asyncio.ensure_future(client.post("/generate", json=BODY, headers=headers())) for _ in range(2)]
            await until(lambda: client.app.state.engine._scheduler.running == 2)
            check_refused(await client.get("/info", headers=headers()), "concurrent")
            gate.release(100)
            assert [answer.status_code for answer in await asyncio.gather(*ask)] == [200, 200]
            assert (await client.get("/info", headers=headers())).status_code == 200

    @pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/", "/v1/completions"])
    async def test_a_text_costs_what_it_read_and_made(self, connect: Any, path: str) -> None:
        """Ten tokens of a bucket of one: the next waits for ten, though a hundred were set aside."""
        body: dict[str, Any] = {"inputs": "say |", "parameters": {"max_new_tokens": 100, "stop": ["q"]}}
        if path == "/v1/completions":
            body = {"prompt": "say |", "max_tokens": 100, "stop": "q", "temperature": 0}
        async with connect(api_keys=f"{KEY},{OTHER}", quota_tokens=NEVER) as client:
            answer = await client.post(path, json=body, headers=headers())
            assert answer.status_code == 200 and "the" in answer.text
            seconds = check_refused(await client.post(path, json=body, headers=headers()), "tokens")
            assert 900 < seconds <= 1000  # five, five ("the q") and what one bucket holds, less the one that was there
            answer = await client.post("/filter", json={"observations": [[1, 2]]}, headers=headers())
            assert answer.status_code == 200
            assert (await client.post(path, json=body, headers=headers(OTHER))).status_code == 200

    async def test_a_text_that_is_left_is_paid_for_as_far_as_it_came(self, connect: Any) -> None:
        gate, has_begun = threading.Semaphore(3), asyncio.Event()
        body = json.dumps({"inputs": "say |", "parameters": {"max_new_tokens": 1000}, "stream": True}).encode()

        async def take(message: Any) -> None:
            if message.get("body"):
                has_begun.set()

        raw = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"x-api-key", KEY.encode())]
        async with connect(fake_models(FakeLanguage(gate=gate)), api_keys=KEY, quota_tokens=NEVER, workers=1) as client:
            sent = {"type": "http.request", "body": body}
            await asgi(client.app, sent, path="/generate", method="POST", headers=raw, take=take, gone=has_begun)
            gate.release(100)
            seconds = check_refused(await client.post("/generate", json=BODY, headers=headers()), "tokens")
        assert 500 < seconds <= 1500  # the prompt and what was made; a thousand were set aside

    async def test_a_refused_text_costs_nothing(self, connect: Any) -> None:
        async with connect(api_keys=KEY, quota_tokens=NEVER) as client:
            for body in ({**BODY, "model": "other"}, {"inputs": 1}, {**BODY, "state": "forged"}):
                assert (await client.post("/generate", json=body, headers=headers())).status_code in (404, 422)
            assert (await client.post("/generate", json=BODY, headers=headers())).status_code == 200

    async def test_observations_beyond_the_quota_are_refused(self, connect: Any) -> None:
        async with connect(api_keys=KEY, quota_observations=NEVER) as client:
            body = {"observations": [[1.0, 2.0]] * 10}
            assert (await client.post("/filter", json=body, headers=headers())).status_code == 200
            seconds = check_refused(await client.post("/filter", json=body, headers=headers()), "observations")
            assert 990 <= seconds <= 1000
            assert (await client.post("/generate", json=BODY, headers=headers())).status_code == 200

    async def test_one_client_leaves_places_of_streams_to_others(self, connect: Any) -> None:
        async with connect(max_streams=4) as http:
            taken = [Socket(http.app) for _ in range(3)]
            for socket in taken:
                await socket.start()
            greedy = Socket(http.app)
            greedy.frame({})
            (failure,), code = await greedy.rest()
            assert (failure["error"]["type"], failure["error"]["code"], code) == ("overloaded", "quota_streams", 1013)
            other = Socket(http.app, client="10.9.9.9")
            await other.start()
            for socket in (*taken, other):
                await socket.leave()
            await slots_are_free(http.app)
            await Socket(http.app).start()

    async def test_a_key_has_its_streams_wherever_it_comes_from(self, connect: Any) -> None:
        async with connect(api_keys=f"{KEY} streams=1,{OTHER}") as http:
            first, second = (
                Socket(http.app, client=f"10.0.0.{n}", headers=[(b"x-api-key", KEY.encode())]) for n in (1, 2)
            )
            await first.start()
            second.frame({})
            (failure,), _ = await second.rest()
            assert failure["error"]["code"] == "quota_streams"
            for _ in range(2):
                await Socket(http.app, headers=[(b"x-api-key", OTHER.encode())]).start()

    async def test_a_live_stream_beyond_its_quota_is_read_more_slowly(self, connect: Any, monkeypatch: Any) -> None:
        waited: list[float] = []
        sleep = asyncio.sleep

        async def note(seconds: float) -> None:
            if seconds >= 1:  # what the process watches beside it sleeps for tenths
                waited.append(seconds)
            await sleep(0)

        monkeypatch.setattr("rfa.service.app.Clients", partial(Clients, clock=Clock()))
        async with connect(api_keys=KEY, quota_observations=0.5) as http:
            socket = Socket(http.app, headers=[(b"x-api-key", KEY.encode())])
            await socket.start()
            monkeypatch.setattr("rfa.service.routes.filter_stream.asyncio.sleep", note)
            for i in range(8):
                socket.frame({"y": [i, i]})
            socket.frame({"close": True})
            (*steps, done), code = await socket.rest()
        assert (len(steps), done["steps"], code) == (8, 8, 1000)
        # Five are saved up, the others come after two, four and six seconds.
        assert waited == pytest.approx([2, 4, 6])

    @pytest.mark.parametrize(
        ("peer", "forwarded", "client"),
        [
            ("10.0.0.1", "203.0.113.7", "203.0.113.7"),
            ("10.0.0.1", "1.1.1.1, 203.0.113.7", "203.0.113.7"),
            ("10.0.0.1", "1.1.1.1, 203.0.113.7, 10.0.0.9", "203.0.113.7"),
            ("10.0.0.1", None, "10.0.0.1"),
            ("203.0.113.8", "1.1.1.1", "203.0.113.8"),
            ("127.0.0.1", "1.1.1.1", "127.0.0.1"),
        ],
    )
    async def test_a_trusted_proxy_says_who_asks(
        self, connect: Any, peer: str, forwarded: str | None, client: str
    ) -> None:
        extra = [] if forwarded is None else [(b"x-forwarded-for", forwarded.encode())]
        async with connect(trusted_proxies="10.0.0.0/24, 2001:db8::1") as http:
            http.app.add_api_route("/see", see)
            _, body = await asgi(http.app, path="/see", client=(peer, 1), headers=[(b"host", b"localhost"), *extra])
        assert json.loads(body["body"]) == client

    def test_a_proxy_that_is_no_network_does_not_start(self) -> None:
        for wrong in ("proxy", "10.0.0.1/8", "10.0.0.0/33", "*"):
            with pytest.raises(ValueError, match="trusted_proxies"):
                Settings.model_validate({"bundles": (), "trusted_proxies": wrong})
