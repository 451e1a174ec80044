"""Check API keys. If the server has keys, all paths except a few pages and health checks require a key.

    Authorization: Bearer KEY          X-API-Key: KEY
    Sec-WebSocket-Protocol: rfa.v1, rfa.key.BASE64URL      for WebSockets, because browsers cannot set other headers

The key in the subprotocol is encoded as base64url without padding. It is removed here, so that the application only
sees `rfa.v1`.

The check compares `scope["path"]` with a short list of open paths. The router matches the same value. The path is not
decoded again, and the Host header is not used. Therefore, this module and the router interpret a path in the same way,
and new routes require a key by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from rfa.runtime.state import base64url
from rfa.service.access.keys import ApiKeys
from rfa.service.access.middleware import Middleware, refuse_early
from rfa.service.assets import assets
from rfa.service.errors import Unauthorized

# The files of the web page require no key, because the page asks the user for the key.
OPEN_PATHS: Final = frozenset(
    {"/", "/docs", "/openapi.json", "/health", "/ready"} | {f"/page/{name}" for name in assets()}
)
# Open paths are open only for reading, because POST / generates text.
OPEN_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Whitespace around a header value (RFC 9110, 5.5).
OPTIONAL_WHITESPACE: Final = b" \t"
PROTOCOL_HEADER: Final = b"sec-websocket-protocol"
KEY_PROTOCOL: Final = "rfa.key."


def is_open(method: str, path: str) -> bool:
    """Return whether a request may be sent without an API key."""
    return path in OPEN_PATHS and method in OPEN_METHODS


class Guard(Middleware):
    """Middleware that rejects requests without a valid key, and sets `scope["state"]["tenant"]`.

    The tenant is a stable id of the key. It is "" if there are no keys, and on open paths.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        super().__init__(app)
        self._keys = keys

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant: str | None = ""
        if len(self._keys) and not (scope["type"] == "http" and is_open(scope["method"], scope["path"])):
            presented = presented_keys(scope["headers"]) + keys_in_protocols(scope.get("subprotocols", ()))
            # With several keys, it would be ambiguous which key to use.
            tenant = self._keys.tenant_of(presented[0]) if len(presented) == 1 else None
        if tenant is None:
            error = Unauthorized(
                "This server requires an API key. Send the header Authorization: Bearer KEY or X-API-Key: KEY."
            )
            await refuse_early(error, scope, receive, send)
            return
        if scope["type"] == "websocket":
            _remove_keys(scope)
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)


def presented_keys(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Return all keys in the headers. Headers with other authentication schemes are ignored, because they may be meant
    for a proxy."""
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
    """Return all keys in the subprotocols of a handshake. An invalid key is returned as b""."""
    offered = [name.removeprefix(KEY_PROTOCOL) for name in protocols if name.startswith(KEY_PROTOCOL)]
    return [_key(text) for text in offered]


def _key(text: str) -> bytes:
    """Return the decoded key. Return b"" if the text is not canonical base64url."""
    try:
        return base64url.decode(text)
    except ValueError:
        return b""


def _remove_keys(scope: Scope) -> None:
    """Remove the keys from the scope, so that the application cannot send or log them."""
    scope["subprotocols"] = [name for name in scope.get("subprotocols", ()) if not name.startswith(KEY_PROTOCOL)]
    others = [(name, value) for name, value in scope["headers"] if name != PROTOCOL_HEADER]
    if scope["subprotocols"]:
        others.append((PROTOCOL_HEADER, ", ".join(scope["subprotocols"]).encode("latin-1")))
    scope["headers"] = others
