"""Client that queries the API of Prometheus. VictoriaMetrics, Thanos and Mimir have the same API."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np
import orjson

from rfa.library.watch.config import Endpoint
from rfa.library.watch.filters import Samples
from rfa.library.watch.selectors import Selector, labels_of

# Maximum number of points of one series that a server returns.
MOST_POINTS: Final = 11_000
MOST_REPLY: Final = 256 << 20
# Maximum number of metrics whose types are requested.
MOST_NAMES: Final = 20_000
_CHUNK: Final = 1 << 20
# Seconds after which the values of a step are complete, unless the server holds back recent values.
_DELAY_SECONDS: Final = 5.0
# VictoriaMetrics leaves out these last seconds in range queries with a step below a minute, or repeats a value there.
_HIDDEN_SECONDS: Final = 30.0
_SHORT_STEP: Final = 60.0
LONGEST_DELAY: Final = _DELAY_SECONDS + _HIDDEN_SECONDS
# Types that a server returns if the type of a metric is unknown.
_UNTYPED: Final = ("unknown", "untyped")


class SourceError(RuntimeError):
    """Raised when a server does not respond, or its reply is an error or invalid. A later attempt may succeed.

    Attributes:
        is_final: Whether the server rejected the request, so that a later attempt would also fail.
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class _OnlyGetRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects of GET requests only. A redirected POST request would become a GET request without the body."""

    def redirect_request(self, req: urllib.request.Request, *args: Any, **kwargs: Any) -> urllib.request.Request | None:
        return super().redirect_request(req, *args, **kwargs) if req.data is None else None


_OPENER: Final = urllib.request.build_opener(_OnlyGetRedirects)


class Requests:
    """Sends requests to a server.

    Args:
        endpoint: The server.

    Attributes:
        headers: Headers of the last reply.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.headers: Mapping[str, str] = {}

    def send(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, most: int = MOST_REPLY
    ) -> bytes:
        """Send a GET request, or a POST request if `body` is set. Return the content of the reply.

        Raises:
            SourceError: If the server does not respond, returns an error, or returns more than `most` bytes.
        """
        url = f"{self._endpoint.url}{path}"
        request = urllib.request.Request(url, data=body, headers={"User-Agent": "rfa-watch", **(headers or {})})
        for name, value in self._endpoint.headers.items():
            request.add_unredirected_header(name, value)  # it may be a secret
        try:
            if (authorization := self._endpoint.authorization()) is not None:
                request.add_unredirected_header("Authorization", authorization)
            with _OPENER.open(request, timeout=self._endpoint.timeout) as reply:
                self.headers = reply.headers
                found = _read(reply, most, time.monotonic() + self._endpoint.timeout)
        except urllib.error.HTTPError as error:
            text = " ".join(error.read(500).decode("utf-8", "replace").split())
            if (place := error.headers.get("Location")) is not None:
                text = f"redirects of POST requests are not followed; set the URL to {place}"
            message = f"{self._endpoint.url}: status {error.code}: {text}"
            raise SourceError(message, is_final=400 <= error.code < 500 and error.code != 429) from None
        except (OSError, ValueError, HTTPException) as error:
            raise SourceError(f"{self._endpoint.url}: {getattr(error, 'reason', error)}") from None
        if len(found) > most:
            raise SourceError(f"{self._endpoint.url}: the reply is larger than {most:,} bytes; narrow the query")
        return found


def _read(reply: Any, most: int, end: float) -> bytes:
    """Return the content of a reply. If it is longer than `most` bytes, only the first `most` + 1 bytes are
    returned."""
    parts, size = [], 0
    while size <= most and (part := reply.read1(min(_CHUNK, most + 1 - size))):
        parts.append(part)
        size += len(part)
        if time.monotonic() > end:
            raise TimeoutError("the reply did not arrive within the timeout")
    return b"".join(parts)


class Prometheus:
    """Client for the Prometheus API of a server.

    Args:
        endpoint: URL and options of the server. The URL does not include /api/v1.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._requests, self._url = Requests(endpoint), endpoint.url

    def usual_delay(self, step: float) -> float:
        """Return the delay in seconds after which the values of a time step are complete. It is longer for
        VictoriaMetrics with short steps.

        Raises:
            SourceError: If the server does not respond, or returns an error.
        """
        if not self._requests.headers:
            self._get("query", {"query": "1"})
        is_victoria = "X-Server-Hostname" in self._requests.headers
        return LONGEST_DELAY if is_victoria and step < _SHORT_STEP else _DELAY_SECONDS

    def range(self, expr: str, start: float, end: float, step: float) -> list[Samples]:
        """Return the values of a query at `start`, `start + step`, … up to `end`.

        Raises:
            SourceError: If the server does not respond, or returns an error.
        """
        data = self._get("query_range", {"query": expr, "start": repr(start), "end": repr(end), "step": repr(step)})
        with _of_this_api("query_range"):
            if data["resultType"] != "matrix":
                raise SourceError(
                    f"query {expr!r} returns a {data['resultType']} instead of series; use an expression that returns "
                    "an instant vector"
                )
            return [_series(one) for one in data["result"]]

    def latest(self, expr: str, time: float) -> list[Samples]:
        """Return the scraped values of a range selector such as `up[10m]`.

        Raises:
            SourceError: If the server does not respond, or returns an error.
        """
        data = self._get("query", {"query": expr, "time": repr(time)})
        with _of_this_api("query"):
            return [_series(one) for one in data["result"]]

    def metadata(self) -> dict[str, str]:
        """Return a mapping from names to types of metrics. The result is empty if the server has no metadata."""
        try:
            data = self._get("metadata", {"limit": str(MOST_NAMES)})
            with _of_this_api("metadata"):
                return {name: str(entries[0]["type"]) for name, entries in data.items() if entries}
        except SourceError:
            return {}

    def names(self) -> list[str]:
        """Return the names of all metrics.

        Raises:
            SourceError: If the server does not respond, or returns an error.
        """
        found = self._get("label/__name__/values", {})
        with _of_this_api("label values"):
            return list(map(str, found))

    def type_of(self, selector: Selector) -> str | None:
        """Return the type of a metric, or None if the server does not know it.

        Raises:
            SourceError: If the server does not respond.
        """
        if selector.name is None:
            return None
        try:
            data = self._get("metadata", {"metric": selector.name})
        except SourceError as error:
            if error.is_final:  # a server without metadata
                return None
            raise
        with _of_this_api("metadata"):
            entries = data.get(selector.name, [])
            kind = str(entries[0]["type"]) if entries else None
        return None if kind in _UNTYPED else kind

    def count(self, expr: str, time: float) -> int:
        """Return the number of series in the result of a query evaluated at the given time.

        Raises:
            SourceError: If the server does not respond, or returns an error.
        """
        # The line break ends a comment in the query.
        data = self._get("query", {"query": f"count({expr}\n)", "time": repr(time)})
        with _of_this_api("query"):
            return int(float(data["result"][0]["value"][1])) if data["result"] else 0

    def _get(self, path: str, parameters: Mapping[str, str]) -> Any:
        body = self._requests.send(f"/api/v1/{path}?{urlencode(parameters)}")
        with _of_this_api(f"{self._url}/api/v1/{path}"):
            reply = orjson.loads(body)
            if reply.get("status") != "success":
                raise SourceError(f"{path}: {json.dumps(reply)[:300]}")
            return reply["data"]


@contextmanager
def _of_this_api(path: str) -> Iterator[None]:
    """Convert errors in interpreting a reply inside this block to a SourceError."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):
        raise SourceError(f"{path}: the reply does not conform to the Prometheus API") from None


def _series(one: Any) -> Samples:
    points = one.get("values", [])  # absent in a series of histograms
    times = np.array([float(t) for t, _ in points])
    values = np.array([float(value) for _, value in points])
    labels = {name: value for name, value in one["metric"].items() if isinstance(value, str)}
    return Samples(labels_of(labels), times, values)
