"""The door: with API keys configured, everything but a few pages and probes needs one.

Decided by the very string that the router dispatches on, `scope["path"]`, against a short list of what is open. Nothing
is derived from the Host header, normalised or decoded again, so there is no path that this layer and the router read
differently, and a route that somebody adds is guarded without being named here.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.keys import KeyRing
from service.access.refusal import refuse
from service.errors import Unauthorized

OPEN_PATHS: Final = frozenset({"/", "/docs", "/openapi.json", "/health", "/ready"})
# POST / generates: an open path is open for reading only.
OPEN_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Around a field value (RFC 9110, 5.5).
OPTIONAL_WHITESPACE: Final = b" \t"


def is_open(method: str, path: str) -> bool:
    """Whether a request needs no key."""
    return path in OPEN_PATHS and method in OPEN_METHODS


class Guard:
    """Middleware that refuses what lacks a key, and names the tenant of what has one in `scope["state"]["tenant"]`.

    The tenant is "" without keys and on open paths, else a stable id of the key.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        tenant: str | None = ""
        if len(self._keys) and not (scope["type"] == "http" and is_open(scope["method"], scope["path"])):
            presented = presented_keys(scope["headers"])
            # Two keys would leave open whose request this is.
            tenant = self._keys.tenant_of(presented[0]) if len(presented) == 1 else None
        if tenant is None:
            if scope["type"] == "websocket":
                await receive()  # websocket.connect, which the refusal answers
            error = Unauthorized("This server needs an API key: Authorization: Bearer KEY, or X-API-Key: KEY.")
            await refuse(error, scope, receive, send)
            return
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
