"""Send the requests, and remove from the replies what differs from run to run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

import httpx
import pyarrow as pa
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.conformance.requests import ARROW, JSON, SSE, Call, calls
from tests.conformance.server import KEYS

HEADERS: Final = ("content-type", "allow", "retry-after", "www-authenticate", "connection", "x-should-retry", "vary")
# By field: random, or of the clock, or of the version of the sources.
CHANGING: Final = frozenset(
    {"id", "timings", "state", "digest", "version", "versions", "bundle_version", "system_fingerprint"}
)
REFERENCE: Final = re.compile(r"<state (.+)>")


def record(url: str) -> dict[str, Any]:
    """The normalised reply to every request, by name."""
    found: dict[str, Any] = {}
    states: dict[str, str] = {}
    with httpx.Client(base_url=url, timeout=120) as client:
        for call in calls():
            assert call.name not in found
            body = _with_states(call.body, states)
            raw = _stream(url, call, body) if call.method == "WS" else _request(client, call, body)
            if (state := _last_state(raw["body"])) is not None:
                states[call.name] = state
            found[call.name] = {**raw, "body": _normalised(raw["body"])}
    return found


def _authorization(call: Call) -> dict[str, str]:
    return {} if call.key is None else {"Authorization": f"Bearer {KEYS[call.key]}"}


def _request(client: httpx.Client, call: Call, body: Any) -> dict[str, Any]:
    headers = {**_authorization(call), **call.headers}
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers = {"Content-Type": JSON, **headers}
    reply = client.request(call.method, call.path, content=body, headers=headers, params=call.params or None)
    chosen = {name: reply.headers[name] for name in HEADERS if name in reply.headers}
    return {"status": reply.status_code, "headers": chosen, "body": _parsed(reply)}


def _parsed(reply: httpx.Response) -> Any:
    kind = reply.headers.get("content-type", "").partition(";")[0]
    if reply.request.url.path == "/metrics":
        lines = reply.text.splitlines()
        return {"metrics": sorted({re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")})}
    if kind == JSON:
        return reply.json() if reply.content else None
    if kind == SSE:
        events = [line.removeprefix("data:").strip() for line in reply.text.splitlines() if line]
        return sorted((_loaded(event) for event in events), key=_choice)
    if kind == ARROW:
        return _batches(reply.content)
    if "ndjson" in kind:
        return sorted(map(json.loads, reply.text.splitlines()), key=lambda line: str(line.get("series", "")))
    # The text of a page may change; that it is one stays.
    return {"is_text": bool(reply.text)}


def _loaded(event: str) -> Any:
    try:
        return json.loads(event)
    except ValueError:
        return event


def _choice(event: Any) -> int:
    """Choices of one request come in any order."""
    choices = event.get("choices") if isinstance(event, dict) else None
    return int(choices[0]["index"]) if choices else 1_000


def _batches(content: bytes) -> dict[str, Any]:
    with pa.ipc.open_stream(content) as reader:
        batches = [
            {"columns": batch.batch.to_pydict(), "metadata": _metadata(batch.custom_metadata)}
            for batch in reader.iter_batches_with_custom_metadata()
        ]
        schema = {column.name: str(column.type) for column in reader.schema}
        metadata = _metadata(reader.schema.metadata)
    return {"schema": schema, "metadata": metadata, "batches": sorted(batches, key=lambda one: str(one["columns"]))}


def _metadata(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    return {name.decode(): json.loads(value) for name, value in (metadata or {}).items()}


def _stream(url: str, call: Call, frames: list[Any]) -> dict[str, Any]:
    """Send the frames in lockstep, and read what is left until the server closes."""

    def opened() -> Any:
        return connect(url.replace("http", "ws") + call.path, additional_headers=_authorization(call))

    replies: list[Any] = []
    with ExitStack() as stack:
        for _ in range(call.parallel):
            other = stack.enter_context(opened())
            other.send("{}")
            other.recv()
        socket = stack.enter_context(opened())
        try:
            for frame in frames:
                socket.send(json.dumps(frame))
                replies.append(json.loads(socket.recv()))
            while True:
                replies.append(json.loads(socket.recv(timeout=30)))
        except ConnectionClosed:
            pass
        return {"status": socket.protocol.close_code, "headers": {}, "body": replies}


def _with_states(value: Any, states: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_states(item, states) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_states(item, states) for item in value]
    if isinstance(value, str) and (found := REFERENCE.fullmatch(value)):
        return states[found[1]]
    return value


def _last_state(value: Any) -> str | None:
    """The last text called `state` in a reply."""
    if isinstance(value, list):
        return next((state for item in reversed(value) if (state := _last_state(item)) is not None), None)
    if not isinstance(value, dict):
        return None
    if isinstance(state := value.get("state"), str):
        return state
    return _last_state(list(value.values()))


def _normalised(value: Any) -> Any:
    if isinstance(value, dict):
        value = {key: _changing(item) if key in CHANGING else _normalised(item) for key, item in value.items()}
        return {**value, "created": "(changing)"} if value.get("created") else value
    return [_normalised(item) for item in value] if isinstance(value, list) else value


def _changing(value: Any) -> Any:
    """Only the kind of a value that changes; an id of a token or of a choice is a number, and stays."""
    if isinstance(value, str):
        return value if value.startswith("session:") else "(text)"
    if isinstance(value, dict):
        return dict.fromkeys(value, "(changing)") if "enum" not in value else value
    return [_changing(item) for item in value] if isinstance(value, list) else value
