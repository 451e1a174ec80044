"""What every answer has and what is written down about it: ids, headers, one count and one line, and no secrets."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from fastapi import WebSocket
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from rfa.service.access import logs
from rfa.service.access.boundary import Boundary
from rfa.service.access.logs import BackgroundHandler, JSONFormatter, TextFormatter
from rfa.service.access.request_log import record_of
from rfa.service.disconnect import Disconnected
from rfa.service.metrics import Metrics
from rfa.service.openapi import openapi_of
from tests.service.models import FakeLanguage, fake_models
from tests.service.raw_asgi import asgi
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio
SECRET = "hunter2-in-the-prompt"
KEY = "hunter2-is-the-key-here"
BODY = {"inputs": "say |", "parameters": {"max_new_tokens": 3}}


@pytest.fixture
def written() -> Iterator[Callable[[], tuple[list[dict[str, Any]], str]]]:
    """Ends the log and gives it, as JSON lines and as text, each through the real handler."""
    handlers: list[tuple[BackgroundHandler, list[bytes]]] = []
    root, level = logging.getLogger(), logging.getLogger().level
    for formatter in (JSONFormatter(), TextFormatter()):
        chunks: list[bytes] = []
        handler = BackgroundHandler(chunks.append)
        handler.setFormatter(formatter)
        handler.addFilter(lambda record: not record.name.startswith("http"))  # httpx: the client of these tests
        root.addHandler(handler)
        handlers.append((handler, chunks))
    root.setLevel(logging.DEBUG)

    def read() -> tuple[list[dict[str, Any]], str]:
        for handler, _ in handlers:
            root.removeHandler(handler)
            handler.close()
        json_log, text_log = (b"".join(chunks) for _, chunks in handlers)
        assert json_log.endswith(b"\n") and text_log.endswith(b"\n")
        return [orjson.loads(line) for line in json_log.splitlines()], text_log.decode()

    yield read
    read()
    root.setLevel(level)


def access_lines(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in log if line["logger"] == "rfa.access" and line["message"] == "request"]


class TestEveryAnswer:
    async def test_has_the_id_of_its_request(self, connect: Any) -> None:
        async with connect(api_keys=KEY) as client:
            for path, status in (("/health", 200), ("/nope", 404), ("/generate", 405), ("/metrics", 200)):
                headers = {"X-API-Key": KEY, "X-Request-ID": "a.B-c_9"}
                response = await client.get(path, headers=headers)
                assert (response.status_code, response.headers.get_list("x-request-id")) == (status, ["a.B-c_9"])
            assert (await client.get("/info", headers={"X-Request-ID": "x"})).headers["x-request-id"] == "x"
            made = [(await client.get("/health")).headers["x-request-id"] for _ in range(50)]
        assert len(set(made)) == 50 and all(re.fullmatch(r"[0-9a-f]{32}", one) for one in made)

    @pytest.mark.parametrize(
        "given",
        [
            b"",
            b" ",
            b"a b",
            b"x" * 129,
            b"a\nb",
            b"a\r\nSet-Cookie: x",
            b"\xff",
            "ı".encode(),
            b"<script>",
            b"a/b",
            b"a,b",
        ],
    )
    async def test_has_an_id_of_ours_where_the_given_one_is_not_plain(self, connect: Any, given: bytes) -> None:
        async with connect() as client:
            start, _ = await asgi(client.app, path="/health", headers=[(b"x-request-id", given)])
            twice = [(b"x-request-id", b"one"), (b"x-request-id", b"two")]
            doubled, _ = await asgi(client.app, path="/health", headers=twice)
        for message in (start, doubled):
            (own,) = [value for name, value in message["headers"] if name == b"x-request-id"]
            assert re.fullmatch(rb"[0-9a-f]{32}", own)

    async def test_is_neither_stored_nor_guessed_at(self, connect: Any) -> None:
        async with connect() as client:
            for path in [*openapi_of(client.app)["paths"], "/nope"]:
                for response in (await client.get(path), await client.post(path, json=BODY)):
                    assert response.headers.get_list("x-content-type-options") == ["nosniff"]
                    # Pages are the same for everybody; a browser that has one asks whether it is still so.
                    is_page = path in {"/", "/docs"} and response.request.method == "GET"
                    assert response.headers.get_list("cache-control") == ["no-cache" if is_page else "no-store"]
            stream = await client.post("/generate", json={**BODY, "stream": True})
            assert stream.headers.get_list("cache-control") == ["no-store"]


async def everything(client: Any) -> None:
    """Requests of all kinds, with the secret wherever a client may put one."""
    key = {"X-API-Key": KEY}
    for path in ("/health", "/ready", "/metrics", "/info", "/", "/docs", "/openapi.json", "/nope"):
        await client.get(path, params={"q": SECRET}, headers=key)
        await client.get(path, headers={"X-API-Key": SECRET, "Authorization": f"Bearer {SECRET}"})
        await client.request("BREW", path, headers=key)
    for body in (
        {"inputs": f"{SECRET} |", "parameters": {"max_new_tokens": 3}},
        {"inputs": f"{SECRET} |", "stream": True},
        {"inputs": f"{SECRET} bad |", "stream": True},
        {"inputs": f"{SECRET} boom |"},
        {"inputs": SECRET, "state": SECRET},
        {"inputs": SECRET, "model": SECRET},
        {"inputs": SECRET, "parameters": {"decode": SECRET, SECRET: SECRET}},
    ):
        await client.post("/generate", json=body, headers={**key, "X-Other": SECRET, "Cookie": SECRET})
    await client.post(
        "/generate", content=f'{{"inputs": "{SECRET}', headers={**key, "content-type": "application/json"}
    )
    await client.post("/generate", content=SECRET, headers={**key, "content-type": SECRET})
    await client.post("/filter", json={"observations": [[1.0, 2.0], None]}, headers=key)
    await client.post(
        "/filter", json={"observations": [[1.0, 2.0], None], "model": SECRET, "state": SECRET}, headers=key
    )


class TestTheLog:
    async def test_has_one_line_for_one_count(self, connect: Any, written: Any) -> None:
        async def live(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.receive_text()

        models = fake_models(FakeLanguage(poison="bad", bomb="boom"))
        async with connect(models, api_keys=KEY) as client:
            client.app.add_api_websocket_route("/live", live)
            await everything(client)
            await asgi(client.app, path="/generate", method="POST", headers=[(b"x-api-key", KEY.encode())])
            for headers in ([], [(b"x-api-key", KEY.encode())]):
                await asgi(client.app, type="websocket", path="/live", headers=headers)
            metrics = client.app.state.metrics.render().decode()
        lines = access_lines(written()[0])
        counted = Counter()
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                if sample.name == "rfa_http_requests_total":
                    label = sample.labels
                    counted[label["route"], label["method"], label["status"]] += int(sample.value)
        logged = Counter((line["route"], line["method"], str(line["status"])) for line in lines)
        assert logged == counted and len(lines) > 30
        assert logged["/generate", "POST", "200"] >= 2 and logged["/live", "WEBSOCKET", "101"] == 1
        assert len({line["id"] for line in lines}) == len(lines)

    async def test_never_has_what_a_client_sent(self, connect: Any, written: Any, monkeypatch: Any) -> None:
        models = fake_models(FakeLanguage(poison="bad", bomb="boom"))

        def quote(model: object, options: Any, lease: object) -> None:
            try:
                raise KeyError(options.prompt)
            except KeyError as error:
                raise ValueError(f"cannot do {options.prompt!r}") from error

        async with connect(models, api_keys=KEY) as client:
            await everything(client)
            monkeypatch.setattr(client.app.state.engine, "generate", quote)
            await client.post("/generate", json={"inputs": SECRET}, headers={"X-API-Key": KEY})
            metrics = client.app.state.metrics.render().decode()
        log, text = written()
        assert "hunter2" not in text and "hunter2" not in orjson.dumps(log).decode() and "hunter2" not in metrics
        failure = [line["exception"] for line in log if line["message"] == "a request failed unexpectedly"][-1]
        assert failure.index("KeyError") < failure.index("led to") < failure.index("ValueError")
        assert "in quote" in failure and failure in text

    async def test_tells_who_asked_what_of_which_model(self, connect: Any, written: Any) -> None:
        key = {"X-API-Key": KEY, "X-Request-ID": "r-1"}
        async with connect(api_keys=KEY) as client:
            reply = await client.post("/generate", json=BODY, headers=key)
            stream = await client.post("/generate", json={**BODY, "stream": True}, headers=key)
            await client.post("/filter", json={"observations": [[1.0, 2.0], None]}, headers=key)
        log, text = written()
        first, second, third = access_lines(log)
        recorded = {"id": "r-1", "method": "POST", "status": 200, "complete": True}
        recorded["tenant"] = re.search(r" tenant=(key-[0-9a-f]{16}) ", text)[1]
        tokens = {"model": "recite", "input_tokens": 5, "output_tokens": 3, "finish_reason": "length"}
        assert first.items() >= {**recorded, **tokens, "route": "/generate", "bytes_out": len(reply.content)}.items()
        assert second.items() >= {**recorded, **tokens, "bytes_out": len(stream.content)}.items()
        assert third.items() >= {**recorded, "route": "/filter", "model": "mean", "observations": 2}.items()
        assert first["bytes_in"] == len(reply.request.content) and first["ms"] > 0
        assert text.count("INFO rfa.access: request id=r-1 method=POST route=/generate status=200") == 2

    async def test_tells_what_a_cut_stream_had_given(self, connect: Any, written: Any) -> None:
        gate = threading.Semaphore(1)
        async with connect(fake_models(FakeLanguage(gate=gate)), workers=1) as client:
            body = orjson.dumps({"inputs": "say |", "parameters": {"max_new_tokens": 10}, "stream": True})
            headers = [(b"content-type", b"application/json")]
            incoming = {"type": "http.request", "body": body}
            await asgi(client.app, incoming, path="/generate", method="POST", headers=headers)  # and is gone
            gate.release(100)
        (line,) = access_lines(written()[0])
        assert line["complete"] is False and line["bytes_in"] == len(body)
        assert line["status"] in (None, 200)

    @pytest.mark.parametrize(
        "path",
        ["/a\nINFO rfa.access: request status=200", "/a\r\n", "/\x1b[31mred", "/\u2028", "/a b=c", '/"', "/\x85", "/é",
         "/\ud800", "/" + "x" * 5000],
    )  # fmt: skip
    async def test_stays_one_line_whatever_the_path(self, connect: Any, written: Any, path: str) -> None:
        async with connect() as client:
            await asgi(client.app, path=path)
        log, text = written()
        (line,) = access_lines(log)
        assert line["status"] == 404 and line["route"] == "other" and len(line["path"]) < 200
        (entry,) = [one for one in text.split("\n") if "rfa.access" in one]
        assert entry.isprintable() and entry.count("request id=") == 1 and len(entry) < 500
        assert not re.search(r"\n(?!\d{4}-)", text.rstrip("\n"))

    async def test_follows_a_websocket(self, connect: Any, written: Any) -> None:
        async def live(websocket: WebSocket) -> None:
            await websocket.accept()
            for _ in range(2):
                record_of(websocket).filtered("mean", 1)
                await websocket.send_text(await websocket.receive_text())
            await websocket.close(1000)

        async def broken(websocket: WebSocket) -> None:
            await websocket.accept()
            raise KeyError(SECRET)

        frames = [{"type": "websocket.connect"}, *[{"type": "websocket.receive", "text": SECRET}] * 2]
        async with connect() as client:
            client.app.add_api_websocket_route("/live", live)
            client.app.add_api_websocket_route("/broken", broken)
            accept, *_, close = await asgi(client.app, *frames, type="websocket", path="/live")
            gone = await asgi(client.app, *frames[:2], type="websocket", path="/live")
            _, failure, closed = await asgi(client.app, *frames, type="websocket", path="/broken")
        assert {b"x-request-id", b"cache-control"} <= {name for name, _ in accept["headers"]}
        assert close["code"] == 1000 and len(gone) == 2
        assert orjson.loads(failure["text"])["error"]["type"] == "internal_error" and closed["code"] == 1011
        log, text = written()
        whole, cut, failed = access_lines(log)
        opened = [line for line in log if line["message"] == "websocket open"]
        assert [line["id"] for line in opened] == [line["id"] for line in (whole, cut, failed)]
        expected = {"route": "/live", "status": 101, "observations": 2, "frames_in": 2, "frames_out": 2}
        assert whole.items() >= {**expected, "model": "mean", "close_code": 1000, "complete": True}.items()
        assert cut.items() >= {"frames_in": 1, "frames_out": 1, "complete": False}.items()
        assert failed["close_code"] == 1011
        assert SECRET not in text

    async def test_an_answer_that_breaks_off_is_cut_and_counted(self, written: Any) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise RuntimeError

        metrics = Metrics()
        with pytest.raises(RuntimeError):
            await asgi(Boundary(app, metrics))
        (line,) = access_lines(written()[0])
        assert (line["status"], line["complete"]) == (200, False)
        assert 'status="200"} 1.0' in metrics.render().decode()


class TestFormats:
    @given(message=st.text(), value=st.text() | st.integers(-(2**63), 2**63) | st.none())
    def test_any_text_is_one_line(self, message: str, value: object) -> None:
        record = logging.LogRecord("x", logging.INFO, "f", 1, message, None, None)
        record.fields = {"value": value}
        document = orjson.loads(JSONFormatter().format(record))
        assert (document["message"], document["value"]) == (message, value)
        assert len(JSONFormatter().format(record).split("\n")) == len(TextFormatter().format(record).splitlines()) == 1

    def test_surrogates_and_groups_and_odd_values_are_written(self) -> None:
        chunks: list[bytes] = []
        handler = BackgroundHandler(chunks.append)
        handler.setFormatter(JSONFormatter())
        logger = logging.Logger("x")
        logger.addHandler(handler)
        logger.info("\ud800", extra={"fields": {"a": "\udfff", "b": 1}})
        logger.info("odd", extra={"fields": {"set": {1}, "nan": float("nan")}})
        logger.info("%d", "no number")
        try:
            raise ExceptionGroup("both", [KeyError(SECRET), OSError(SECRET)])
        except ExceptionGroup:
            logger.exception("group")
        handler.close()
        log = [orjson.loads(line) for line in b"".join(chunks).splitlines()]
        assert log[0]["a"] == "\\udfff"
        assert (log[1]["set"], log[1]["nan"]) == ("{1}", None)
        assert "could not be formatted" in log[2]["message"]
        assert "KeyError" in log[3]["exception"] and "OSError" in log[3]["exception"]
        assert SECRET not in log[3]["exception"]


class TestTheHandler:
    def handler(self, write: Callable[[bytes], None]) -> tuple[BackgroundHandler, logging.Logger]:
        handler = BackgroundHandler(write)
        handler.setFormatter(JSONFormatter())
        logger = logging.Logger("x")
        logger.addHandler(handler)
        return handler, logger

    def test_a_writer_that_is_stuck_holds_up_nobody_and_costs_bounded_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "LONGEST_BACKLOG", 50)
        stuck, begun, chunks = threading.Event(), threading.Event(), []

        def write(data: bytes) -> None:
            chunks.append(data)
            begun.set()
            stuck.wait()

        handler, logger = self.handler(write)
        logger.info("first")
        begun.wait()
        for index in range(80):
            logger.info("%d", index)
        stuck.set()
        handler.close()
        messages = [orjson.loads(line)["message"] for line in b"".join(chunks).splitlines()]
        assert messages[:51] == ["first", *(str(index) for index in range(50))]
        assert messages[51:] == [
            "30 log records were dropped, because they were produced faster than they could be written"
        ]

    def test_lines_go_in_chunks_that_a_pipe_takes_whole(self) -> None:
        chunks: list[bytes] = []
        handler, logger = self.handler(chunks.append)
        for index in range(500):
            logger.info("%d %s", index, "x" * 100)
        handler.close()
        assert len(chunks) < 100 and max(map(len, chunks)) <= logs.CHUNK_BYTES
        assert all(chunk.endswith(b"\n") for chunk in chunks)
        lines = [orjson.loads(line)["message"] for line in b"".join(chunks).splitlines()]
        assert [int(line.split()[0]) for line in lines] == list(range(500))

    def test_a_forked_child_logs_too(self) -> None:
        program = (
            "import logging, os; from rfa.service.access.logs import configure_logging\n"
            "from rfa.service.settings import Settings\n"
            "configure_logging(Settings(bundles=()))\n"
            "child = os.fork()\n"
            "logging.getLogger('x').info('child' if child == 0 else 'parent')\n"
            "if child: assert os.waitpid(child, 0)[1] == 0\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE
        )
        assert sorted(line.split()[-1] for line in done.stderr.splitlines()) == ["child", "parent"]


async def test_a_client_that_left_before_its_refusal_is_no_failure(connect: Any, written: Any) -> None:
    async def send(message: Any) -> None:
        raise Disconnected

    async with connect() as client:
        for kind in ("websocket", "http"):
            await asgi(client.app, type=kind, path="/nope", scheme="ws", take=send)
    lines, _ = written()
    assert lines and not [line for line in lines if line["level"] in ("WARNING", "ERROR")]
