"""Check the Host and Origin headers, to protect against requests from other web pages.

Without API keys, every program of a user can reach a server on the same machine, and a browser runs the code of any
page. Pages cannot forge these two headers.

The check of *Host* protects against DNS rebinding: if the name of an attacker's server resolves to this machine, the
attacker's pages have the same origin as this server. The server accepts addresses (a page loaded from an address
belongs to the server), `localhost`, the name in `RFA_HOST`, and the names in `RFA_ALLOWED_HOSTS`. With API keys and
without `RFA_ALLOWED_HOSTS`, every name is accepted, because the attacker's page has no key. Requests without a Host
header are accepted, because they are not from a browser.

The check of *Origin* protects against cross-origin requests. It applies to WebSockets, and to methods other than GET,
HEAD and OPTIONS. The origin must be absent, that of the server, or one of `RFA_ALLOWED_ORIGINS`, and `Sec-Fetch-Site`
must not contradict it. Other requests are answered, but the browser hides the response from pages of other origins,
because CORS headers are sent only for allowed origins.

Headers are parsed completely before they are compared. Starlette's middleware is not used: TrustedHostMiddleware cuts
the header at the first colon and does not support IPv6, and CORSMiddleware rejects preflights in plain text and ignores
WebSocket handshakes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rfa.service.access.guard import OPTIONAL_WHITESPACE
from rfa.service.access.middleware import Middleware, refuse_early
from rfa.service.errors import Forbidden, MalformedRequest, MisdirectedRequest, ServiceError
from rfa.service.settings import ConfigurationError, Settings

HARMLESS_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITES: Final = (b"same-origin", b"none")  # `none` means that the user entered the address
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
ANY: Final = "*"
LONGEST_NAME: Final = 253
# Maximum length of scheme, name and port together.
LONGEST_TEXT: Final = 300
# Number of cached header values. A server has few names, and every request repeats them.
CACHED: Final = 64
LARGEST_PORT: Final = 65_535
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>[0-9]{0,5}))?")
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/]+)")
# For requests without credentials, `*` includes all request headers except Authorization.
PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST",
    "Access-Control-Allow-Headers": "*, Authorization",
    "Access-Control-Max-Age": "600",
}
EXPOSED: Final = b"X-Request-ID, Retry-After"

Headers = Sequence[tuple[bytes, bytes]]


class Authority(NamedTuple):
    """Host and port as defined in RFC 3986. The host is normalised. The port is None if there is none."""

    host: str
    port: int | None
    is_address: bool


class Origin(NamedTuple):
    """Origin of a page: scheme, host and port. The port is None if it is the default port of the scheme."""

    scheme: str
    authority: Authority

    @classmethod
    @lru_cache(CACHED)
    def parse(cls, text: str) -> Origin:
        """Parse `scheme://host[:port]`.

        Raises:
            ValueError: If the text has another form, such as `null`.
        """
        found = _ORIGIN.fullmatch(text) if len(text) <= LONGEST_TEXT else None
        if found is None:
            raise ValueError
        scheme, authority = found["scheme"].lower(), parse_authority(found["authority"])
        port = None if authority.port == DEFAULT_PORTS.get(scheme) else authority.port
        return cls(scheme, authority._replace(port=port))

    def __str__(self) -> str:
        host, port, _ = self.authority
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}{'' if port is None else f':{port}'}"

    def is_same(self, server: Authority) -> bool:
        """Return whether this origin is that of the server. Only host and port are compared, because a proxy may change
        the scheme."""
        default = DEFAULT_PORTS.get(self.scheme)
        return default is not None and self.authority._replace(port=self.authority.port or default) == server._replace(
            port=default if server.port is None else server.port
        )


@lru_cache(CACHED)
def parse_authority(text: str) -> Authority:
    """Parse `host[:port]`, where the host is an IPv4 address, an IPv6 address in brackets, or a name. A final dot is
    ignored.

    Raises:
        ValueError: If the text has another form, for example if it is empty or contains a user name.
    """
    found = _AUTHORITY.fullmatch(text) if len(text) <= LONGEST_TEXT else None
    if found is None:
        raise ValueError
    port = int(found["port"]) if found["port"] else None
    if port is not None and port > LARGEST_PORT:
        raise ValueError
    host = found["host"]
    if host.startswith("["):
        return Authority(str(ipaddress.IPv6Address(host[1:-1])), port, True)
    try:
        return Authority(str(ipaddress.IPv4Address(host)), port, True)
    except ValueError:
        name = host.lower().removesuffix(".")
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError
    return Authority(name, port, False)


class OriginPolicy:
    """Hosts and origins that the server accepts.

    Args:
        settings: Settings of the server. `host`, `allowed_hosts` and `allowed_origins` are used.
        has_keys: Whether clients need an API key.

    Raises:
        ConfigurationError: If a setting is not a host or origin.
    """

    def __init__(self, settings: Settings, *, has_keys: bool) -> None:
        listed = [host for host in settings.security.allowed_hosts if host != ANY]
        self._takes_any_name = ANY in settings.security.allowed_hosts or (
            has_keys and not settings.security.allowed_hosts
        )
        self._names = {"localhost", *_own_name(settings.server.host), *map(_listed_name, listed)}
        self._origins = frozenset(map(_listed_origin, settings.security.allowed_origins))

    @property
    def has_origins(self) -> bool:
        """Whether origins other than that of the server are allowed."""
        return bool(self._origins)

    def check_host(self, headers: Headers) -> Authority | None:
        """Check the Host header, and return its host and port. Return None if there is no such header.

        Raises:
            MalformedRequest: If the header is malformed, or there are several such headers.
            MisdirectedRequest: If the host is not a name of this server.
        """
        values = _values(headers, b"host")
        if not values:
            return None
        try:
            (value,) = values
            authority = parse_authority(value.decode("ascii"))
        except ValueError:
            message = "The Host header must be a single name or address, with or without a port."
            raise MalformedRequest(message, code="malformed_host") from None
        if not (authority.is_address or self._takes_any_name or authority.host in self._names):
            raise MisdirectedRequest(
                "This server does not accept this host name; RFA_ALLOWED_HOSTS lists the accepted names."
            )
        return authority

    def allowed_origin(self, headers: Headers) -> Origin | None:
        """Return the origin of a request if `allowed_origins` contains it. Otherwise, return None."""
        if not self._origins:
            return None
        try:
            (value,) = _values(headers, b"origin")
            origin = Origin.parse(value.decode("ascii"))
        except ValueError:
            return None
        return origin if origin in self._origins else None

    def check_origin(self, headers: Headers, server: Authority | None) -> None:
        """Check that a request is not from a page of another origin.

        Args:
            server: Host and port in the Host header of the request.

        Raises:
            Forbidden: If the origin of the page is not allowed.
        """
        if self.allowed_origin(headers) is not None:
            return
        sites = _values(headers, b"sec-fetch-site")
        agrees = not sites or (len(sites) == 1 and sites[0] in OWN_SITES)
        if not (agrees and _are_same_origin(_values(headers, b"origin"), server)):
            message = "Pages from this origin may not use this server; RFA_ALLOWED_ORIGINS lists the allowed origins."
            raise Forbidden(message, code="origin_not_allowed")


class OriginGuard(Middleware):
    """Middleware that rejects requests that an `OriginPolicy` does not allow, and adds CORS headers for allowed
    origins."""

    def __init__(self, app: ASGIApp, policy: OriginPolicy) -> None:
        super().__init__(app)
        self._policy = policy

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_websocket = scope["type"] == "websocket"
        allowed = self._policy.allowed_origin(scope["headers"])
        if self._policy.has_origins and not is_websocket:
            send = _with_cors_headers(allowed, send)
        try:
            server = self._policy.check_host(scope["headers"])
            if is_websocket or scope["method"] not in HARMLESS_METHODS:
                self._policy.check_origin(scope["headers"], server)
        except ServiceError as error:
            await refuse_early(error, scope, receive, send)
            return
        if allowed is not None and not is_websocket and _is_preflight(scope):
            await Response(status_code=204, headers=PREFLIGHT)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _values(headers: Headers, header: bytes) -> list[bytes]:
    """Return all values of a header, without surrounding whitespace (RFC 9110, 5.5)."""
    return [value.strip(OPTIONAL_WHITESPACE) for name, value in headers if name == header]


def _are_same_origin(origins: Sequence[bytes], server: Authority | None) -> bool:
    """Return whether there is no Origin header, or its only value is the origin of the server."""
    if not origins:
        return True
    try:
        (value,) = origins
        return server is not None and Origin.parse(value.decode("ascii")).is_same(server)
    except ValueError:
        return False


def _is_preflight(scope: Scope) -> bool:
    is_requested = any(name == b"access-control-request-method" for name, _ in scope["headers"])
    return is_requested and scope["method"] == "OPTIONS"


def _with_cors_headers(allowed: Origin | None, send: Send) -> Send:
    """Wrap `send` so that it adds the CORS headers for an allowed origin."""
    headers = [(b"vary", b"Origin")]
    if allowed is not None:
        headers += [
            (b"access-control-allow-origin", str(allowed).encode()),
            (b"access-control-expose-headers", EXPOSED),
        ]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return send_with_headers


def _own_name(host: str) -> Iterable[str]:
    """Return the host of the settings as the only item if it is a name. Return an empty collection if the host is an
    address."""
    try:
        authority = parse_authority(host)
    except ValueError:
        return ()
    return () if authority.is_address else (authority.host,)


def _listed_name(text: str) -> str:
    try:
        authority = parse_authority(text)
    except ValueError:
        raise ConfigurationError(f"allowed_hosts: {text!r} is not a valid host name") from None
    if authority.port is not None:
        raise ConfigurationError(
            f"allowed_hosts: {text!r} must not contain a port, because a host name applies to all ports"
        )
    return authority.host


def _listed_origin(text: str) -> Origin:
    try:
        return Origin.parse(text)
    except ValueError:
        message = f"allowed_origins: {text!r} is not an origin; write it like https://app.example.org"
        raise ConfigurationError(message) from None
