"""HTTP server of `rfa watch`. It serves `/metrics`, health checks, and the routes of pushed sources."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final, NamedTuple

logger = logging.getLogger("rfa.watch")
MOST_BODY: Final = 32 << 20
MOST_CONNECTIONS: Final = 64
_IDLE_SECONDS: Final = 60.0
# Maximum number of requests with larger bodies that are read at a time.
_SMALL_BODY: Final = 1 << 20
_LARGE_BODIES: Final = 4
# Maximum seconds until the server notices that `close` was called.
_POLL_SECONDS: Final = 0.1


class Reply(NamedTuple):
    """An HTTP reply, which consists of a status, content and a content type."""

    status: int
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"


# A function of the body and the headers of a request. Names of headers are in lower case.
Route = Callable[[bytes, Mapping[str, str]], Reply]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    routes: ClassVar[Mapping[tuple[str, str], Route]] = {}
    large: ClassVar[threading.Semaphore] = threading.Semaphore(_LARGE_BODIES)

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BODY:
            self.close_connection = True
            status = 413 if length.isdecimal() else 411
            self._send(Reply(status, f"Content-Length is required and must be at most {MOST_BODY}\n".encode()))
            return
        with self.large if int(length) > _SMALL_BODY else nullcontext():
            body = self.rfile.read(int(length))
            if len(body) == int(length):
                self._answer(body)

    def _answer(self, body: bytes) -> None:
        path = self.path.partition("?")[0]
        route = self.routes.get((self.command, path))
        if route is None:
            has_path = any(one == path for _, one in self.routes)
            self._send(Reply(405 if has_path else 404, b"no such route\n"))
            return
        try:
            reply = route(body, {name.lower(): value for name, value in self.headers.items()})
        except Exception:
            logger.exception("request %s %s failed with an unexpected error", self.command, path)
            reply = Reply(500, b"internal error\n")
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)


class HttpServer(ThreadingHTTPServer):
    """HTTP server that serves routes in threads until it is closed.

    Args:
        listen: HOST:PORT. With port 0, a free port is chosen.
        routes: Functions that handle requests, by method and path.

    Raises:
        OSError: If the address cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, listen: str, routes: Mapping[tuple[str, str], Route]) -> None:
        host, _, port = listen.rpartition(":")
        handler = type("Handler", (_Handler,), {"routes": dict(routes)})
        try:
            super().__init__((host.strip("[]"), int(port)), handler)
        except OSError as error:
            raise OSError(error.errno, error.strerror, listen) from None
        self.paths = [path for _, path in routes]
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        threading.Thread(target=self.serve_forever, args=(_POLL_SECONDS,), name="watch-http", daemon=True).start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, unless there are too many connections."""
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a connection at debug level, because clients may disconnect at any time."""
        logger.debug("a client closed its connection early", exc_info=True)

    def close(self) -> None:
        """Stop serving and close the socket."""
        self.shutdown()
        self.server_close()
