"""Who a browser speaks for: the name it thinks it reached (Host), and the page that made it ask (Origin).

A server on this machine without keys is open to every program of its user, and browsers run programs of strangers. Two
headers that a page cannot forge keep them out.

*Host*, against DNS rebinding: a stranger's name that resolves to this machine makes its pages same-origin with us. That
takes a name. An address in the Host header is what the page itself was loaded from, so addresses are always welcome,
and with them probes that ask for an IP. Of names these are: `localhost`, the name in `RFA_HOST`, those in
`RFA_ALLOWED_HOSTS`. Where API keys are configured and that setting is empty, any name is: a rebound page has no key,
and a server behind keys is meant to be reached under names that it does not know. A request without a Host is no
browser's.

*Origin*, against pages that ask across origins: what changes something (any method but GET, HEAD and OPTIONS, and every
WebSocket, to which browsers do not apply their same-origin policy) must come from no page, from a page of ours, or from
one in `RFA_ALLOWED_ORIGINS`. `Sec-Fetch-Site`, which newer browsers send and pages cannot set, must agree. What only
reads is answered to any page; the browser keeps the answer from it, since no CORS header is sent but to listed origins.

Nothing is compared before it is parsed, and nothing by a part of it. Starlette's TrustedHostMiddleware cuts at the
first colon and knows no IPv6; its CORSMiddleware answers refused preflights in plain text and sees no handshakes.
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
from rfa.service.access.refusal import turn_away
from rfa.service.errors import Forbidden, MalformedRequest, MisdirectedRequest, ServiceError
from rfa.service.settings import ConfigurationError, Settings

HARMLESS_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITES: Final = (b"same-origin", b"none")  # none: the user typed the address
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
ANY: Final = "*"
LONGEST_NAME: Final = 253
# A scheme, a name, a port; browsers write no longer ones.
LONGEST_TEXT: Final = 300
# Texts whose meaning is kept: a server has few names, and every request repeats one.
REMEMBERED: Final = 64
LARGEST_PORT: Final = 65_535
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>[0-9]{0,5}))?")
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_ORIGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/]+)")
# `*` covers every request header but Authorization, as no credentials of the browser's own are involved.
PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST",
    "Access-Control-Allow-Headers": "*, Authorization",
    "Access-Control-Max-Age": "600",
}
EXPOSED: Final = b"X-Request-ID, Retry-After"

Headers = Sequence[tuple[bytes, bytes]]


class Authority(NamedTuple):
    """Host and port as RFC 3986 has them: the host in its one normal form, the port None where it is not given."""

    host: str
    port: int | None
    is_address: bool


class Origin(NamedTuple):
    """Scheme and authority of a page; the port is None where it is the scheme's own."""

    scheme: str
    authority: Authority

    @classmethod
    @lru_cache(REMEMBERED)
    def parse(cls, text: str) -> Origin:
        """Read `scheme://host[:port]`.

        Raises:
            ValueError: it is anything else, `null` included.
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

    def is_of(self, server: Authority) -> bool:
        """Whether this is a page of the server that was asked for under that authority.

        What ends TLS in front of it, if anything does, is not known, so that either scheme will do.
        """
        default = DEFAULT_PORTS.get(self.scheme)
        return default is not None and self.authority._replace(port=self.authority.port or default) == server._replace(
            port=default if server.port is None else server.port
        )


@lru_cache(REMEMBERED)
def parse_authority(text: str) -> Authority:
    """Read `host[:port]`: an IPv4 address, an IPv6 address in brackets, or a name, whose last dot does not count.

    Raises:
        ValueError: it is anything else, such as empty, or with a user in front.
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
    """Which hosts this server answers as, and whose pages may use it.

    Args:
        settings: `host`, `allowed_hosts`, `allowed_origins`.
        has_keys: clients need an API key.

    Raises:
        ConfigurationError: a host or an origin of the settings is none.
    """

    def __init__(self, settings: Settings, *, has_keys: bool) -> None:
        given = [host for host in settings.allowed_hosts if host != ANY]
        self._takes_any_name = ANY in settings.allowed_hosts or (has_keys and not settings.allowed_hosts)
        self._names = {"localhost", *_own_name(settings.host), *map(_listed_name, given)}
        self._origins = frozenset(map(_listed_origin, settings.allowed_origins))

    @property
    def has_origins(self) -> bool:
        """Whether pages of other origins may read answers at all."""
        return bool(self._origins)

    def check_host(self, headers: Headers) -> Authority | None:
        """The authority that a request asks for; None for one that names none.

        Raises:
            MalformedRequest: not a host, or several.
            MisdirectedRequest: a name that is not this server's.
        """
        given = _values(headers, b"host")
        if not given:
            return None
        try:
            (value,) = given
            authority = parse_authority(value.decode("ascii"))
        except ValueError:
            message = "The Host header must be one name or address, with or without a port."
            raise MalformedRequest(message, code="malformed_host") from None
        if not (authority.is_address or self._takes_any_name or authority.host in self._names):
            raise MisdirectedRequest("This server does not answer under this name; RFA_ALLOWED_HOSTS lists its names.")
        return authority

    def listed(self, headers: Headers) -> Origin | None:
        """The origin of a request, if it is one of the settings'."""
        if not self._origins:
            return None
        try:
            (value,) = _values(headers, b"origin")
            origin = Origin.parse(value.decode("ascii"))
        except ValueError:
            return None
        return origin if origin in self._origins else None

    def check_origin(self, headers: Headers, server: Authority | None) -> None:
        """Refuse what a page of another origin asks for.

        Raises:
            Forbidden
        """
        if self.listed(headers) is not None:
            return
        sites = _values(headers, b"sec-fetch-site")
        agrees = not sites or (len(sites) == 1 and sites[0] in OWN_SITES)
        if not (agrees and _are_of(_values(headers, b"origin"), server)):
            message = "Pages of this origin may not use this server; RFA_ALLOWED_ORIGINS lists those that may."
            raise Forbidden(message, code="origin_not_allowed")


class OriginGuard:
    """Middleware that holds every request and every handshake to the policy, and tells browsers of listed origins."""

    def __init__(self, app: ASGIApp, policy: OriginPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        is_websocket = scope["type"] == "websocket"
        listed = self._policy.listed(scope["headers"])
        if self._policy.has_origins and not is_websocket:
            send = _telling(listed, send)
        try:
            server = self._policy.check_host(scope["headers"])
            if is_websocket or scope["method"] not in HARMLESS_METHODS:
                self._policy.check_origin(scope["headers"], server)
        except ServiceError as error:
            await turn_away(error, scope, receive, send)
            return
        if listed is not None and not is_websocket and _is_preflight(scope):
            await Response(status_code=204, headers=PREFLIGHT)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _values(headers: Headers, header: bytes) -> list[bytes]:
    """Every value of a header, without the whitespace around it, which is no part of it (RFC 9110, 5.5)."""
    return [value.strip(OPTIONAL_WHITESPACE) for name, value in headers if name == header]


def _are_of(origins: Sequence[bytes], server: Authority | None) -> bool:
    """Whether a request with these Origin headers is from no page, or from one of the server's own."""
    if not origins:
        return True
    try:
        (value,) = origins
        return server is not None and Origin.parse(value.decode("ascii")).is_of(server)
    except ValueError:
        return False


def _is_preflight(scope: Scope) -> bool:
    asked = any(name == b"access-control-request-method" for name, _ in scope["headers"])
    return asked and scope["method"] == "OPTIONS"


def _telling(listed: Origin | None, send: Send) -> Send:
    """`send`, with what a browser needs to hand an answer to a page of a listed origin."""
    headers = [(b"vary", b"Origin")]
    if listed is not None:
        headers += [(b"access-control-allow-origin", str(listed).encode()), (b"access-control-expose-headers", EXPOSED)]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return send_with_headers


def _own_name(host: str) -> Iterable[str]:
    """The name that the server was told to listen on, where it is one."""
    try:
        authority = parse_authority(host)
    except ValueError:
        return ()
    return () if authority.is_address else (authority.host,)


def _listed_name(text: str) -> str:
    try:
        authority = parse_authority(text)
    except ValueError:
        raise ConfigurationError(f"allowed_hosts: {text!r} is not a host name") from None
    if authority.port is not None:
        raise ConfigurationError(f"allowed_hosts: {text!r} must have no port; every port is meant")
    return authority.host


def _listed_origin(text: str) -> Origin:
    try:
        return Origin.parse(text)
    except ValueError:
        message = f"allowed_origins: {text!r} is not an origin, such as https://app.example.org"
        raise ConfigurationError(message) from None
