"""Who gets in: keys, tricks with paths and headers, handshakes, and settings that must not start."""

from __future__ import annotations

import base64
import hashlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import WebSocket
from hypothesis import given
from hypothesis import strategies as st

from rfa.service.access.guard import OPEN_PATHS, keys_in_protocols, presented_keys
from rfa.service.access.keys import ApiKeys, check_exposure, is_loopback, load_keys
from rfa.service.app import create_app
from rfa.service.errors import ErrorReply, Unauthorized
from rfa.service.openapi import openapi_of
from rfa.service.settings import ConfigurationError, Settings
from tests.service.live import connected
from tests.service.models import fake_models
from tests.service.raw_asgi import asgi
from tests.service.replies import read
from tests.waiting import PATIENCE

KEYS = ("first-key-of-sixteen-or-more", "second+key/of~sixteen_or.more=")
KEY = KEYS[0]
BODY = {"inputs": "say |", "parameters": {"max_new_tokens": 3}}
BEARER = {"Authorization": f"Bearer {KEY}"}


def tenant(key: str) -> str:
    return "key-" + hashlib.sha256(key.encode()).hexdigest()[:16]


def as_protocol(key: str) -> str:
    return "rfa.key." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def handshake(*protocols: str, headers: Any = ()) -> dict[str, Any]:
    """A handshake for a live stream, as the server hands it over."""
    offered = [(b"sec-websocket-protocol", ", ".join(protocols).encode())] if protocols else []
    return {
        "type": "websocket",
        "path": "/filter/stream",
        "scheme": "ws",
        "subprotocols": list(protocols),
        "headers": [(b"host", b"localhost"), *offered, *headers],
        "extensions": {"websocket.http.response": {}},
    }


def check_unauthorized(response: httpx.Response) -> None:
    assert response.status_code == 401, response.text
    assert response.headers["www-authenticate"] == "Bearer"
    if response.request.method == "HEAD":
        return
    error = read(ErrorReply, response.content).error
    assert (error.type, error.code) == ("unauthorized", Unauthorized.default_code)


@pytest.fixture(scope="module")
async def guarded() -> AsyncIterator[Any]:
    async with connected(api_keys=",".join(KEYS)) as client:
        yield client


@pytest.mark.anyio
class TestGuard:
    async def test_every_path_but_the_open_ones_needs_a_key(self, connect: Any) -> None:
        async with connect(api_keys=KEY) as client:
            documented = openapi_of(client.app)["paths"]
            for path in [*documented, "/nope", "/v1/nope", "/health/x", "/docs/", "/static/x.js", "/favicon.ico"]:
                for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "BREW"):
                    response = await client.request(method, path)
                    if path in OPEN_PATHS and method in ("GET", "HEAD", "OPTIONS"):
                        assert response.status_code in (200, 405), (method, path)
                    else:
                        check_unauthorized(response)
                assert (await client.request("POST", path, headers=BEARER)).status_code != 401

    async def test_a_route_that_somebody_adds_is_guarded(self, connect: Any) -> None:
        async with connect(api_keys=KEY) as client:
            client.app.add_api_route("/admin/reload", lambda: {"done": True})
            check_unauthorized(await client.get("/admin/reload"))
            assert (await client.get("/admin/reload", headers=BEARER)).status_code == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {"Authorization": f"Bearer {KEY}"},
            {"authorization": f"bearer {KEY}"},
            {"Authorization": f"BEARER   {KEY}"},
            {"X-API-Key": KEY},
            {"x-api-key": f" \t{KEYS[1]}\t "},
            {"Authorization": f"Bearer {KEY} "},
            {"Authorization": f"Bearer {KEYS[1]}"},
            {"Authorization": "Basic dXNlcjpwYXNz", "X-API-Key": KEY},
        ],
    )
    async def test_a_key_opens_in_either_header(self, guarded: Any, headers: dict[str, str]) -> None:
        assert (await guarded.post("/generate", json=BODY, headers=headers)).status_code == 200
        assert (await guarded.get("/nope", headers=headers)).status_code == 404

    @pytest.mark.parametrize(
        "headers",
        [
            [],
            [("Authorization", "")],
            [("Authorization", "Bearer")],
            [("Authorization", "Bearer ")],
            [("Authorization", KEY)],
            [("Authorization", f"Bearer{KEY}")],
            [("Authorization", f"Bearer\t{KEY}")],
            [("Authorization", f"Bearer {KEY},")],
            [("Authorization", f"Bearer {KEY} {KEY}")],
            [("Authorization", f'Bearer "{KEY}"')],
            [("Authorization", f"Basic {KEY}")],
            [("Authorization", f"Token {KEY}")],
            [("Authorization", f"Bearer {KEY[:-1]}")],
            [("Authorization", f"Bearer {KEY}x")],
            [("Authorization", f"Bearer {KEY.upper()}")],
            [("Authorization", f"Bearer {','.join(KEYS)}")],
            [("Authorization", b"Bearer \xff\xfe" + KEY.encode())],
            [("Authorization", "Bearer " + "x" * 20_000)],
            [("Authorization", f"Bearer {KEY}"), ("Authorization", f"Bearer {KEY}")],
            [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer wrong")],
            [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {KEY}")],
            [("Authorization", f"Bearer {KEY}"), ("X-API-Key", KEYS[1])],
            [("Authorization", "Bearer wrong"), ("X-API-Key", KEY)],
            [("X-API-Key", "")],
            [("X-API-Key", f"Bearer {KEY}")],
            [("X-API-Key", KEY), ("X-API-Key", KEY)],
            [("X-API-Key", "é" * 16)],
            [("X_API_Key", KEY)],
            [("Cookie", f"X-API-Key={KEY}")],
            [("Proxy-Authorization", f"Bearer {KEY}")],
        ],
    )
    async def test_anything_else_does_not(self, guarded: Any, headers: list[Any]) -> None:
        raw = [(name.lower().encode(), v if isinstance(v, bytes) else v.encode()) for name, v in headers]
        start, body = await asgi(guarded.app, path="/metrics", headers=raw)
        assert start["status"] == 401
        assert read(ErrorReply, body["body"]).error.code == "invalid_api_key"
        assert KEY.encode() not in body["body"]

    async def test_the_tenant_is_a_stable_id_of_the_key(self, connect: Any) -> None:
        seen: list[str] = []

        async def see(websocket: WebSocket) -> None:
            seen.append(websocket.state.tenant)
            await websocket.close()

        for settings, headers, expected in (
            ({}, [], ""),
            ({}, [(b"x-api-key", KEY.encode())], ""),
            ({"api_keys": ",".join(KEYS)}, [(b"x-api-key", KEY.encode())], tenant(KEY)),
            ({"api_keys": ",".join(reversed(KEYS))}, [(b"x-api-key", KEY.encode())], tenant(KEY)),
            ({"api_keys": KEYS[1]}, [(b"authorization", b"Bearer " + KEYS[1].encode())], tenant(KEYS[1])),
        ):
            async with connect(**settings) as client:
                client.app.add_api_websocket_route("/see", see)
                await asgi(client.app, type="websocket", path="/see", scheme="ws", headers=headers)
                assert seen.pop() == expected

    @pytest.mark.parametrize("path", ["/live", "/nope", "/", "/health"])
    async def test_a_handshake_without_a_key_is_refused(self, connect: Any, path: str) -> None:
        async def live(websocket: WebSocket) -> None:
            raise AssertionError("reached")

        handshake: dict[str, Any] = {"type": "websocket", "path": path, "scheme": "ws"}
        async with connect(api_keys=KEY) as client:
            client.app.add_api_websocket_route("/live", live)
            extended: dict[str, Any] = {**handshake, "extensions": {"websocket.http.response": {}}}
            start, *body = await asgi(client.app, **extended)
            assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
            assert (b"www-authenticate", b"Bearer") in start["headers"]
            assert read(ErrorReply, body[0]["body"]).error.type == "unauthorized"
            (closed,) = await asgi(client.app, **handshake)
            assert (closed["type"], closed["code"]) == ("websocket.close", 1008)

    @pytest.mark.parametrize(
        "protocols",
        [("rfa.v1", as_protocol(KEY)), (as_protocol(KEYS[1]), "rfa.v1"), ("other", as_protocol(KEY), "rfa.v1")],
    )
    async def test_a_browser_sends_its_key_as_a_subprotocol(self, guarded: Any, protocols: tuple[str, ...]) -> None:
        accept, *_ = await asgi(guarded.app, **handshake(*protocols))
        assert (accept["type"], accept["subprotocol"]) == ("websocket.accept", "rfa.v1")
        assert not [1 for _, value in accept["headers"] if b"rfa.key" in value]

    async def test_the_application_never_sees_that_key(self, connect: Any) -> None:
        seen: list[Any] = []

        async def see(websocket: WebSocket) -> None:
            seen.append((websocket.state.tenant, websocket.scope["subprotocols"], websocket.headers.items()))
            await websocket.close()

        async with connect(api_keys=",".join(KEYS)) as client:
            client.app.add_api_websocket_route("/see", see)
            for others in (["rfa.v1", "b"], []):
                await asgi(client.app, **{**handshake(*others, as_protocol(KEY)), "path": "/see"})
                who, protocols, headers = seen.pop()
                assert (who, protocols) == (tenant(KEY), others)
                assert dict(headers) == {"host": "localhost"} | (
                    {"sec-websocket-protocol": "rfa.v1, b"} if others else {}
                )

    @pytest.mark.parametrize(
        "protocols",
        [
            ("rfa.v1",),
            ("rfa.v1", KEY),
            ("rfa.v1", f"rfa.key.{KEY}"),
            ("rfa.v1", "rfa.key."),
            ("rfa.v1", as_protocol(KEY) + "="),
            ("rfa.v1", as_protocol(KEY) + "A"),
            ("rfa.v1", as_protocol(KEY)[:-1]),
            ("rfa.v1", as_protocol(KEY).upper()),
            ("rfa.v1", as_protocol(KEY + " ")),
            ("rfa.v1", "RFA.key." + as_protocol(KEY)[8:]),
            ("rfa.v1", as_protocol(KEY), as_protocol(KEY)),
            ("rfa.v1", as_protocol(KEY), as_protocol(KEYS[1])),
            ("rfa.v1", as_protocol(KEY), as_protocol("wrong-wrong-wrong-wrong")),
            ("rfa.v1", as_protocol(KEY), "rfa.key.!"),
        ],
    )
    async def test_other_subprotocols_do_not_open(self, guarded: Any, protocols: tuple[str, ...]) -> None:
        start, body = await asgi(guarded.app, **handshake(*protocols))
        assert start["status"] == 401 and KEY.encode() not in body["body"]

    async def test_a_key_in_two_places_or_in_a_subprotocol_of_http_does_not_open(self, guarded: Any) -> None:
        for header in ((b"x-api-key", KEY.encode()), (b"authorization", f"Bearer {KEY}".encode())):
            start, _ = await asgi(guarded.app, **handshake("rfa.v1", as_protocol(KEY), headers=[header]))
            assert start["status"] == 401
        offered = {"Sec-WebSocket-Protocol": f"rfa.v1, {as_protocol(KEY)}"}
        check_unauthorized(await guarded.get("/metrics", headers=offered))

    async def test_the_protocol_is_chosen_without_keys_too_and_only_when_offered(self, connect: Any) -> None:
        async with connect() as client:
            for protocols, chosen in (
                ((), None), (("other",), None), (("rfa.v1",), "rfa.v1"), (("a", "rfa.v1", as_protocol(KEY)), "rfa.v1"),
            ):  # fmt: skip
                accept, *_ = await asgi(client.app, **handshake(*protocols))
                assert (accept["type"], accept.get("subprotocol")) == ("websocket.accept", chosen)


@given(
    st.lists(
        st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"accept"]), st.binary(max_size=40)), max_size=4
    )
)
def test_no_header_bytes_break_the_guard(headers: list[tuple[bytes, bytes]]) -> None:
    ring = ApiKeys(KEYS)
    assert [ring.tenant_of(key) for key in presented_keys(headers)] == [None] * len(presented_keys(headers))


@given(st.text(), st.binary(max_size=30))
def test_a_key_is_written_as_a_subprotocol_in_one_way(text: str, key: bytes) -> None:
    written = "rfa.key." + base64.urlsafe_b64encode(key).decode().rstrip("=")
    assert keys_in_protocols([written, "rfa.v1"]) == [key]
    (read,) = keys_in_protocols([f"rfa.key.{text}"])
    assert read == b"" or base64.urlsafe_b64encode(read).decode().rstrip("=") == text


def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """No early exit: the number of comparisons does not tell which key it was, or whether it was one."""
    import hmac

    compared: list[bytes] = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    ring = ApiKeys([*KEYS, "a-third-key-of-the-ring"])
    for key in (*KEYS, "not one of them"):
        compared.clear()
        ring.tenant_of(key.encode())
        assert len(compared) == len(set(compared)) == 3


class TestKeySettings:
    def settings(self, **given: Any) -> Settings:
        return Settings(bundles=(), **given)

    def test_keys_come_from_both_places(self, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        file.write_text(f"# clients\n\n  {KEYS[1]}  \n # {'x' * 20}\nthird-key-of-the-file\r\n")
        ring = load_keys(self.settings(api_keys=f" {KEY} ,", api_keys_file=file))
        assert len(ring) == 3
        assert [ring.tenant_of(key.encode()) for key in KEYS] == [tenant(key) for key in KEYS]
        assert ring.tenant_of(b"# clients") is None

    @pytest.mark.parametrize(
        ("keys", "reason"),
        [
            ("hunter2-hunter2", "15 characters, but it must have at least 16"),
            (f"{KEY},hunter2", "key 2 has 7 characters"),
            (f"{KEY},{KEY}", "key 2 is a duplicate"),
            ("hunter2 with some spaces", "printable ASCII"),
            ("hunter2-hünter2-hunter2", "printable ASCII"),
            ("hunter2-hunter2-hunter2\x7f", "printable ASCII"),
            ("", "contains no key"),
            (" , ,", "contains no key"),
        ],
    )
    def test_bad_keys_are_refused_and_not_shown(self, keys: str, reason: str, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        file.write_text(keys.replace(",", "\n"))
        for settings in (self.settings(api_keys=keys), self.settings(api_keys_file=file)):
            with pytest.raises(ConfigurationError, match=reason) as refused:
                create_app(settings, load=lambda _: fake_models())
            assert "hunter2" not in str(refused.value) and KEY not in str(refused.value)
            assert "hunter2" not in repr(settings)

    @pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
    def test_a_file_that_cannot_be_read_is_refused(self, content: bytes | None, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load_keys(self.settings(api_keys_file=file))

    @pytest.mark.parametrize(
        ("host", "is_local"),
        [("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("LocalHost", True), ("::1", True),
         ("0.0.0.0", False), ("::", False), ("", False), ("192.168.1.5", False), ("10.0.0.1", False),
         ("localhost.example.org", False), ("127.0.0.1.example.org", False), ("server", False), ("0", False)],
    )  # fmt: skip
    def test_exposure(self, host: str, is_local: bool) -> None:
        assert is_loopback(host) is is_local
        check_exposure(self.settings(host=host, api_keys=KEY))
        check_exposure(self.settings(host=host, insecure=True))
        if is_local:
            check_exposure(self.settings(host=host))
        else:
            with pytest.raises(ConfigurationError, match="RFA_API_KEYS"):
                check_exposure(self.settings(host=host))

    def test_insecure_does_not_excuse_a_bad_key(self) -> None:
        with pytest.raises(ConfigurationError, match="at least 16"):
            check_exposure(self.settings(host="0.0.0.0", api_keys="short", insecure=True))

    @pytest.mark.parametrize(
        ("environment", "reason"),
        [
            ({"RFA_HOST": "0.0.0.0"}, "RFA_INSECURE=true"),
            # The refusals themselves are tested without the command.
            *(
                pytest.param(environment, reason, marks=pytest.mark.slow)
                for environment, reason in (
                    ({"RFA_API_KEYS": "hunter2"}, "7 characters"),
                    ({"RFA_HOST": "0.0.0.0", "RFA_API_KEYS": ""}, "contains no key"),
                    ({"RFA_API_KEY": "hunter2-hunter2-hunter2"}, "did you mean RFA_API_KEYS?"),
                )
            ),
        ],
    )
    def test_the_command_says_so_in_one_line(
        self, environment: dict[str, str], reason: str, linear_bundle: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with socket.create_server(("127.0.0.1", 0)) as taken:  # were it to start, it would fail here, with another line
            command = [sys.executable, "-m", "rfa", "serve", "--bundle", str(linear_bundle), "--port"]
            done = subprocess.run(
                [*command, str(taken.getsockname()[1])], capture_output=True, text=True, timeout=PATIENCE
            )
        assert done.returncode == 1
        assert reason in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert "hunter2" not in done.stderr
