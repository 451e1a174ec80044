"""The door: with API keys configured, everything but a few pages and probes needs one.

    Authorization: Bearer KEY          X-API-Key: KEY
    Sec-WebSocket-Protocol: rfa.v1, rfa.key.BASE64URL      a handshake only: browsers can set no other header there

The subprotocol that carries a key is the key in base64url without padding. It goes no further than this layer: the
application and what it answers know of `rfa.v1` alone.

Decided by the very string that the router dispatches on, `scope["path"]`, against a short list of what is open. Nothing
is derived from the Host header, normalised or decoded again, so there is no path that this layer and the router read
differently, and a route that somebody adds is guarded without being named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from rfa.runtime.state import base64url
from rfa.service.access.keys import ApiKeys
from rfa.service.access.refusal import turn_away
from rfa.service.assets import assets
from rfa.service.errors import Unauthorized

# A page asks for a key, so its own files need none: each is named.
OPEN_PATHS: Final = frozenset(
    {"/", "/docs", "/openapi.json", "/health", "/ready"} | {f"/page/{name}" for name in assets()}
)
# POST / generates: an open path is open for reading only.
OPEN_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Around a field value (RFC 9110, 5.5).
OPTIONAL_WHITESPACE: Final = b" \t"
PROTOCOL_HEADER: Final = b"sec-websocket-protocol"
KEY_PROTOCOL: Final = "rfa.key."


def is_open(method: str, path: str) -> bool:
    """Whether a request needs no key."""
    return path in OPEN_PATHS and method in OPEN_METHODS


class Guard:
    """Middleware that refuses what lacks a key, and names the tenant of what has one in `scope["state"]["tenant"]`.

    The tenant is "" without keys and on open paths, else a stable id of the key.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        tenant: str | None = ""
        if len(self._keys) and not (scope["type"] == "http" and is_open(scope["method"], scope["path"])):
            presented = presented_keys(scope["headers"]) + keys_in_protocols(scope.get("subprotocols", ()))
            # Two keys would leave open whose request this is.
            tenant = self._keys.tenant_of(presented[0]) if len(presented) == 1 else None
        if tenant is None:
            error = Unauthorized("This server needs an API key: Authorization: Bearer KEY, or X-API-Key: KEY.")
            await turn_away(error, scope, receive, send)
            return
        if scope["type"] == "websocket":
            _forget_keys(scope)
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)


def presented_keys(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Every key in the headers; other authentication schemes are somebody else's, a proxy's say."""
    keys = []
    for name, value in headers:
        if name == b"x-api-key":
            keys.append(value.strip(OPTIONAL_WHITESPACE))
        elif name == b"authorization":
            scheme, _, key = value.strip(OPTIONAL_WHITESPACE).partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(key.lstrip(b" "))
    return keys


def keys_in_protocols(protocols: Sequence[str]) -> list[bytes]:
    """Every key among the subprotocols that a handshake offers; one that cannot be read is a wrong one."""
    offered = [name.removeprefix(KEY_PROTOCOL) for name in protocols if name.startswith(KEY_PROTOCOL)]
    return [_key(text) for text in offered]


def _key(text: str) -> bytes:
    """The bytes, or none where it is not the one way to write them."""
    try:
        return base64url.decode(text)
    except ValueError:
        return b""


def _forget_keys(scope: Scope) -> None:
    """Take keys out of what the application sees of a handshake, and could answer or log."""
    scope["subprotocols"] = [name for name in scope.get("subprotocols", ()) if not name.startswith(KEY_PROTOCOL)]
    others = [(name, value) for name, value in scope["headers"] if name != PROTOCOL_HEADER]
    if scope["subprotocols"]:
        others.append((PROTOCOL_HEADER, ", ".join(scope["subprotocols"]).encode("latin-1")))
    scope["headers"] = others
