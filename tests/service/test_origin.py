"""Browsers: names that strangers point at this machine, pages of other origins, and the pages that are welcome."""

from __future__ import annotations

import functools
import socket
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as open_websocket

from rfa.service.access.origin import Authority, Origin, OriginPolicy, parse_authority
from rfa.service.app import create_app
from rfa.service.errors import ErrorReply, ServiceError
from rfa.service.openapi import openapi_of
from rfa.service.settings import ConfigurationError, Settings
from tests.service.models import fake_models
from tests.service.raw_asgi import asgi
from tests.service.replies import read
from tests.waiting import PATIENCE

STRANGE = ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"})
KEY = "a-key-of-sixteen-or-more"
BODY = {"inputs": "say |", "parameters": {"max_new_tokens": 3}}
APP = "https://app.example.org"
HANDSHAKE: dict[str, Any] = {"type": "websocket", "path": "/filter/stream", "scheme": "ws",
             "extensions": {"websocket.http.response": {}}}  # fmt: skip


@functools.cache
def policy(has_keys: bool = False, **settings: Any) -> OriginPolicy:
    return OriginPolicy(Settings(bundles=(), **settings), has_keys=has_keys)


def refusal(of: OriginPolicy, *headers: tuple[str, str | bytes], changes: bool = True) -> str | None:
    """The code of what these headers are refused with, if they are."""
    raw = [(name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in headers]
    try:
        server = of.check_host(raw)
        if changes:
            of.check_origin(raw, server)
    except ServiceError as error:
        return error.code
    return None


class TestHost:
    @pytest.mark.parametrize(
        "host",
        ["localhost", "localhost:8000", "LOCALHOST:1", "localhost.", "localhost.:8000", "127.0.0.1", "127.0.0.1:8000",
         "127.8.9.1:65535", "[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]", "10.42.0.17:8000", "192.168.1.5",
         "[fe80::1]:80", "[::ffff:127.0.0.1]", "0.0.0.0:8000", "localhost:", "localhost\t", " localhost "],
    )  # fmt: skip
    def test_addresses_and_localhost_are_always_welcome(self, host: str) -> None:
        """A probe asks for the address of a pod, whatever the names of the server are."""
        for each in (policy(), policy(host="0.0.0.0"), policy(allowed_hosts="rfa.example.org"), policy(has_keys=True)):
            assert refusal(each, ("host", host)) is None

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "evil.example:8000", "localhost.evil.example", "evil-localhost", "xlocalhost", "localhostx",
         "127.0.0.1.evil.example", "127.0.0.1.nip.io", "foo.localhost", "server", "127.1", "2130706433", "0x7f000001",
         "127.0.0.1.", "0177.0.0.1", "127.0.0.256", "1.2.3", "xn--localhost-9za"],
    )  # fmt: skip
    def test_other_names_are_not_this_server(self, host: str) -> None:
        assert refusal(policy(), ("host", host)) == "host_not_allowed"
        assert refusal(policy(host="0.0.0.0", insecure=True), ("host", host)) == "host_not_allowed"
        assert refusal(policy(allowed_hosts="rfa.example.org", has_keys=True), ("host", host)) == "host_not_allowed"

    @pytest.mark.parametrize(
        "host",
        ["", " ", ":8000", "user@localhost", "user:secret@127.0.0.1", "localhost@evil.example", "localhost:8000:1",
         "localhost:x", "localhost:99999", "localhost:123456", "localhost/", "localhost/evil.example", "localhost?x",
         "localhost#x", "localhost,evil.example", "localhost evil.example", "[::1", "::1", "[::1]x",
         "[::1%eth0]", "[localhost]", "[]", "[127.0.0.1]", "localhost..", ".localhost", ".", "..", "a..b",
         "http://localhost", "*", "localhost\\@evil.example", "localhost%00", b"localhost\x00", b"localh\xc3\xb6st",
         b"\xff", "x" * 300, "localhost:-1", "localhost:+1", "localhost:８０"],
    )  # fmt: skip
    def test_what_is_no_host_is_malformed(self, host: str | bytes) -> None:
        for each in (policy(), policy(has_keys=True), policy(allowed_hosts="*")):
            assert refusal(each, ("host", host)) == "malformed_host"

    @pytest.mark.parametrize("second", ["localhost", "evil.example", ""])
    def test_several_are_none(self, second: str) -> None:
        for pair in (("localhost", second), (second, "localhost")):
            assert refusal(policy(), *(("host", host) for host in pair)) == "malformed_host"

    def test_names_are_the_settings_and_the_one_it_listens_on(self) -> None:
        listed = policy(allowed_hosts=" RFA.example.org , rfa.internal.,", host="lan.example")
        for host in ("rfa.example.org", "Rfa.Example.ORG.:443", "rfa.internal:8000", "lan.example:1", "[::1]"):
            assert refusal(listed, ("host", host)) is None
        for host in ("example.org", "x.rfa.example.org", "rfa.example.org.evil", "rfa.internal.evil"):
            assert refusal(listed, ("host", host)) == "host_not_allowed"
        for each in (policy(has_keys=True), policy(allowed_hosts="*"), policy(allowed_hosts="a.b,*")):
            assert refusal(each, ("host", "any.name.at.all:1")) is None

    def test_without_one_it_is_no_browsers(self) -> None:
        assert refusal(policy()) is None  # HTTP/1.0 probes
        assert refusal(policy(), ("origin", "http://localhost")) == "origin_not_allowed"

    @pytest.mark.parametrize(
        ("name", "value"),
        [("allowed_hosts", "a b"), ("allowed_hosts", "rfa.example.org:443"), ("allowed_hosts", "https://rfa.example.org"),
         ("allowed_hosts", "*.example.org"), ("allowed_hosts", ".example.org"), ("allowed_origins", "*"),
         ("allowed_origins", "null"), ("allowed_origins", "app.example.org"), ("allowed_origins", APP + "/"),
         ("allowed_origins", "https://*.example.org"), ("allowed_origins", "https://u@app.example.org")],
    )  # fmt: skip
    def test_settings_that_are_none_do_not_start(self, name: str, value: str) -> None:
        with pytest.raises(ConfigurationError, match=name):
            create_app(Settings.model_validate({"bundles": (), name: value}), load=lambda _: fake_models())

    @given(st.text() | st.text(alphabet="localhost127.:[]@%/xX-_0", max_size=30))
    def test_nothing_but_one_normal_form_is_read(self, text: str) -> None:
        try:
            host, port, is_address = parse_authority(text)
        except ValueError:
            return
        again = f"{f'[{host}]' if ':' in host else host}{'' if port is None else f':{port}'}"
        assert host and host == host.lower()
        if is_address or not host.replace(".", "").isdigit():
            assert parse_authority(again) == Authority(host, port, is_address)


class TestOrigin:
    @pytest.mark.parametrize(
        ("host", "origin"),
        [("127.0.0.1:8000", "http://127.0.0.1:8000"), ("localhost:8000", "http://localhost:8000"),
         ("[::1]:8000", "http://[::1]:8000"), ("localhost", "http://localhost"), ("localhost:80", "http://localhost"),
         ("localhost", "http://localhost:80"), ("rfa.example.org", "https://rfa.example.org"),
         ("rfa.example.org:443", "https://rfa.example.org"), ("rfa.example.org", "https://rfa.example.org:443"),
         ("Rfa.Example.Org", "https://rfa.example.org"), ("rfa.example.org:8443", "https://rfa.example.org:8443")],
    )  # fmt: skip
    def test_our_own_pages_may_ask(self, host: str, origin: str) -> None:
        """With TLS ended by a proxy too, which says https where this server sees none."""
        ours = policy(allowed_hosts="rfa.example.org")
        for site in ([], [("sec-fetch-site", "same-origin")]):
            assert refusal(ours, ("host", host), ("origin", origin), *site) is None

    @pytest.mark.parametrize(
        "origin",
        ["http://evil.example", "https://evil.example", "null", "", " ", "http://localhost", "http://localhost:8001",
         "https://localhost:8001", "http://127.0.0.1:8000", "http://[::1]:8000", "http://localhost:8000.evil.example",
         "http://localhost.evil.example:8000", "http://localhost:8000@evil.example", "http://evil.example#localhost:8000",
         "http://user@localhost:8000", "http://localhost:8000/", "http://localhost:8000/x", "localhost:8000",
         "//localhost:8000", "file://", "file://localhost:8000", "chrome-extension://abc", "ws://localhost:8000",
         "http://localhost:8000,null",
         "http://localhost:8000 http://evil.example", "http:localhost:8000", "http:///localhost:8000", "HTTP",
         b"http://localhost:8000\x00", b"http://localhost:8000\xff", "http://xlocalhost:8000", "http://localhos:8000"],
    )  # fmt: skip
    def test_pages_of_others_may_not(self, origin: str | bytes) -> None:
        for each in (policy(), policy(has_keys=True), policy(allowed_origins=APP)):
            assert refusal(each, ("host", "localhost:8000"), ("origin", origin)) == "origin_not_allowed"

    def test_several_origins_are_no_origin_of_ours(self) -> None:
        ours = ("origin", "http://localhost:8000")
        for other in ("http://localhost:8000", "http://evil.example", "null"):
            for pair in ((ours, ("origin", other)), (("origin", other), ours)):
                assert refusal(policy(), ("host", "localhost:8000"), *pair) == "origin_not_allowed"

    @pytest.mark.parametrize("site", ["cross-site", "same-site", "", "Same-Origin", "same-origin,none", "null", "x"])
    def test_the_browsers_word_on_the_site_must_agree(self, site: str) -> None:
        host = ("host", "localhost:8000")
        for origin in ([], [("origin", "http://localhost:8000")]):
            assert refusal(policy(), host, *origin, ("sec-fetch-site", site)) == "origin_not_allowed"
            assert refusal(policy(), host, *origin, ("sec-fetch-site", "none")) is None
            twice = [("sec-fetch-site", "same-origin"), ("sec-fetch-site", site)]
            assert refusal(policy(), host, *origin, *twice) == "origin_not_allowed"
        foreign = ("origin", "http://evil.example")
        assert refusal(policy(), host, foreign, ("sec-fetch-site", "same-origin")) == "origin_not_allowed"

    def test_listed_pages_may_ask_from_wherever_they_are(self) -> None:
        listed = policy(allowed_origins=f" {APP} , http://localhost:3000, chrome-extension://abc", has_keys=True)
        for origin in (APP, "https://APP.example.org:443", "http://localhost:3000", "chrome-extension://abc"):
            assert refusal(listed, ("host", "rfa"), ("origin", origin), ("sec-fetch-site", "cross-site")) is None
        for origin in ("http://app.example.org", "https://app.example.org:8443", "https://example.org", APP + ".evil",
                       "http://localhost:3001", "https://x.app.example.org", "chrome-extension://abcd"):  # fmt: skip
            assert refusal(listed, ("host", "rfa"), ("origin", origin)) == "origin_not_allowed"

    @given(st.text(alphabet="htps:/localhost80[]@.", max_size=30) | st.text())
    def test_an_origin_that_is_read_is_written_as_a_browser_does(self, text: str) -> None:
        try:
            origin = Origin.parse(text)
        except ValueError:
            return
        assert Origin.parse(str(origin)) == origin and len(str(origin)) <= len(text) + 40


def has_cors(headers: Any) -> bool:
    return any(name.lower().startswith("access-control") for name in headers)


@pytest.mark.anyio
class TestTheServer:
    async def test_every_path_is_guarded_whether_it_is_there_or_not(self, connect: Any) -> None:
        async with connect() as client:
            paths = [*openapi_of(client.app)["paths"], "/nope", "/docs", "/openapi.json", "/metrics", "//", "/health/x"]
            for path in paths:
                for method in ("GET", "HEAD", "OPTIONS", "POST", "BREW"):
                    answer = await client.request(method, path, headers={"Host": "evil.example"})
                    assert (answer.status_code, answer.headers["content-type"]) == (421, "application/json")
                    assert "x-request-id" in answer.headers
                    if method != "HEAD":
                        error = read(ErrorReply, answer.content).error
                        assert (error.type, error.code) == ("misdirected_request", "host_not_allowed")
                        assert "evil" not in error.message
                    for headers in STRANGE:
                        answer = await client.request(method, path, headers=headers)
                        assert not has_cors(answer.headers)  # pages of others may not read, and no preflight succeeds
                        if method in ("POST", "BREW"):
                            error = read(ErrorReply, answer.content).error
                            assert (answer.status_code, error.type) == (403, "forbidden")
                            assert error.code == "origin_not_allowed"

    @pytest.mark.parametrize("path", ["/filter/stream", "/nope", "/health"])
    async def test_a_page_cannot_open_a_websocket(self, connect: Any, path: str) -> None:
        async with connect() as client:
            for extra, status, code in (
                ([(b"host", b"localhost"), (b"origin", b"http://evil.example")], 403, "origin_not_allowed"),
                ([(b"host", b"localhost"), (b"origin", b"null")], 403, "origin_not_allowed"),
                ([(b"host", b"evil.example"), (b"origin", b"http://evil.example")], 421, "host_not_allowed"),
                ([(b"host", b"evil.example")], 421, "host_not_allowed"),
                ([(b"host", b"localhost"), (b"host", b"localhost")], 400, "malformed_host"),
            ):
                start, body = await asgi(client.app, **{**HANDSHAKE, "path": path, "headers": extra})
                assert (start["type"], start["status"]) == ("websocket.http.response.start", status)
                assert read(ErrorReply, body["body"]).error.code == code
            opened, *_ = await asgi(
                client.app, **{**HANDSHAKE, "headers": [(b"host", b"localhost:1"), (b"origin", b"http://localhost:1")]}
            )
            assert opened["type"] == "websocket.accept"

    async def test_a_key_does_not_excuse_a_strange_page(self, connect: Any) -> None:
        async with connect(api_keys=KEY) as client:
            headers = {"Authorization": f"Bearer {KEY}", "Origin": "https://evil.example"}
            assert (await client.post("/generate", json=BODY, headers=headers)).status_code == 403

    async def test_listed_origins_are_reported_so(self, connect: Any) -> None:
        key = {"Authorization": f"Bearer {KEY}"}
        async with connect(api_keys=KEY, allowed_origins=APP) as client:
            for answer, status in (
                (await client.post("/generate", json=BODY, headers={**key, "Origin": APP}), 200),
                (await client.post("/generate", json={**BODY, "stream": True}, headers={**key, "Origin": APP}), 200),
                (await client.post("/generate", json={}, headers={**key, "Origin": APP}), 422),
                (await client.post("/generate", json=BODY, headers={"Origin": APP}), 401),
                (await client.get("/nope", headers={**key, "Origin": APP}), 404),
                (await client.get("/health", headers={"Origin": APP, "Host": "a b"}), 400),
            ):
                assert answer.status_code == status
                assert answer.headers.get_list("access-control-allow-origin") == [APP]
                assert answer.headers.get_list("vary") == ["Origin"]
                assert "access-control-allow-credentials" not in answer.headers
            for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "http://localhost"}):
                answer = await client.get("/health", headers=headers)
                assert (answer.status_code, answer.headers["vary"], has_cors(answer.headers)) == (200, "Origin", False)

    async def test_a_preflight_of_a_listed_origin_needs_no_key(self, connect: Any) -> None:
        expected = "authorization,x-stainless-os"
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": expected}
        async with connect(api_keys=KEY, allowed_origins=APP) as client:
            for path in ("/generate", "/v1/completions", "/nope"):
                answer = await client.options(path, headers={"Origin": APP, **asked})
                assert (answer.status_code, answer.content) == (204, b"")
                assert answer.headers["access-control-allow-origin"] == APP
                assert "POST" in answer.headers["access-control-allow-methods"]
                assert answer.headers["access-control-allow-headers"] == "*, Authorization"
                refused = await client.options(path, headers={"Origin": "https://evil.example", **asked})
                assert refused.status_code == 401 and not has_cors(refused.headers)
                assert read(ErrorReply, refused.content)
            assert (await client.options("/generate", headers={"Origin": APP})).status_code == 401

    async def test_the_page_works_behind_a_proxy_with_a_listed_name(self, connect: Any) -> None:
        async with connect(allowed_hosts="rfa.example.org") as client:
            headers = {"Host": "rfa.example.org"}
            assert "<title>rfa-server" in (await client.get("/", headers=headers)).text
            headers |= {"Origin": "https://rfa.example.org", "Sec-Fetch-Site": "same-origin"}
            answer = await client.post("/generate", json={**BODY, "stream": True}, headers=headers)
            assert answer.status_code == 200 and "generated_text" in answer.text


def test_a_real_server_tells_pages_and_names_apart(live: Any) -> None:
    with live(allowed_hosts=()) as address:
        port = int(address.rpartition(":")[2])
        for origin, host, status, code in (
            ("http://evil.example", "127.0.0.1", 403, "origin_not_allowed"),
            (f"http://evil.example:{port}", "evil.example", 421, "host_not_allowed"),
        ):
            line, strange = socket.create_connection(("127.0.0.1", port)), f"ws://{host}:{port}/filter/stream"
            with (
                pytest.raises(InvalidStatus) as refused,
                open_websocket(strange, origin=origin, sock=line, open_timeout=PATIENCE),  # type: ignore[call-overload]
            ):
                pass
            assert refused.value.response.status_code == status
            assert read(ErrorReply, bytes(refused.value.response.body)).error.code == code
        url = address.replace("http", "ws") + "/filter/stream"
        with open_websocket(url, origin=address, open_timeout=PATIENCE) as ours:
            ours.send("{}")
            assert '"ready":true' in ours.recv()
        headers = {"Host": "10.42.0.17:8000"}
        assert httpx.post(f"{address}/generate", json=BODY, headers=headers, timeout=PATIENCE).status_code == 200
