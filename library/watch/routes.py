"""HTTP routes of `rfa watch`: `/metrics`, health checks, remote write and OpenTelemetry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from rfa.library.watch.exposition import CONTENT_TYPE
from rfa.library.watch.filters import Samples
from rfa.library.watch.http_server import HttpServer, Reply, Route
from rfa.library.watch.store import StoreUnavailable

if TYPE_CHECKING:
    from rfa.library.watch.watch import Watch

# Maximum number of pushed requests that are decoded at a time.
MOST_DECODED: Final = 2
_HEALTHY: Final = Reply(200, b"ok\n")


def routes_of(watch: Watch) -> dict[str, dict[tuple[str, str], Route]]:
    """Return the routes of each HTTP server, by the address on which it listens."""
    found: dict[str, dict[tuple[str, str], Route]] = {}
    source, metrics = watch.config.source, watch.config.sink.metrics
    if metrics is not None:
        found[metrics.listen] = {
            ("GET", "/metrics"): lambda body, headers: Reply(200, watch.metrics().encode(), CONTENT_TYPE)
        }
    if source.remote_write is not None:
        found.setdefault(source.remote_write.listen, {})["POST", "/api/v1/write"] = _remote_write(watch)
    if source.otlp is not None:
        found.setdefault(source.otlp.listen, {})["POST", "/v1/metrics"] = _otlp(watch)
    for routes in found.values():
        routes["GET", "/-/healthy"] = lambda body, headers: _HEALTHY
    return found


def _remote_write(watch: Watch) -> Route:
    from rfa.library.watch.wire import read_write_request

    return _pushes(watch, lambda body, headers: read_write_request(body), lambda headers: Reply(204))


def _otlp(watch: Watch) -> Route:
    from rfa.library.watch.otlp import read_metrics

    def reply(headers: Mapping[str, str]) -> Reply:
        is_json = headers.get("content-type", "").startswith("application/json")
        return Reply(200, b"{}" if is_json else b"", "application/json" if is_json else "application/x-protobuf")

    return _pushes(watch, read_metrics, reply)


def _pushes(
    watch: Watch,
    read: Callable[[bytes, Mapping[str, str]], Sequence[Samples]],
    reply: Callable[[Mapping[str, str]], Reply],
) -> Route:
    from rfa.library.watch.wire import WireError

    decoding = threading.Semaphore(MOST_DECODED)

    def route(body: bytes, headers: Mapping[str, str]) -> Reply:
        try:
            with decoding:
                watch.push(read(body, headers))
        except WireError as error:
            return Reply(400, f"{error}\n".encode())
        except StoreUnavailable as error:
            return Reply(503, f"{error}\n".encode())
        return reply(headers)

    return route


def serve(watch: Watch) -> list[HttpServer]:
    """Start the HTTP servers of the configuration, and return them.

    Raises:
        OSError: If an address cannot be used.
    """
    return [HttpServer(listen, routes) for listen, routes in routes_of(watch).items()]
