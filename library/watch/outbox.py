"""Queue of requests from a sink to another server. A separate thread sends them, so a slow server does not delay the
time steps."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import orjson

from rfa.library.watch.config import Endpoint
from rfa.library.watch.prometheus import Requests, SourceError

logger = logging.getLogger("rfa.watch")
# Maximum number and size of the requests that wait in memory, and in a storage. Above it, the oldest are dropped.
MOST_WAITING: Final = 200
MOST_WAITING_BYTES: Final = 64 << 20
MOST_STORED: Final = 10_000
MOST_STORED_BYTES: Final = 256 << 20
LONGEST_PAUSE: Final = 30.0
CLOSING_SECONDS: Final = 5.0


class RequestStorage(Protocol):
    """Storage for waiting requests, which persists after the process ends.

    Each method raises an OSError if the storage is temporarily not available.
    """

    def load(self) -> list[tuple[int, int]]:
        """Return the numbers and sizes of the requests that an earlier process stored, in the order of sending."""
        ...

    def write(self, number: int, content: bytes) -> None:
        """Store a request.

        Raises:
            StateError: If another process has started to use this storage.
        """
        ...

    def flush(self) -> None:
        """Wait until the stored requests would survive a crash of the operating system."""
        ...

    def read(self, number: int) -> bytes:
        """Return the content of a stored request.

        Raises:
            ValueError: If the content is lost or damaged.
        """
        ...

    def remove(self, number: int) -> None:
        """Remove a request from the storage.

        Raises:
            StateError: If another process has started to use this storage.
        """
        ...


class FolderRequests:
    """Storage that writes one file per request.

    Args:
        folder: Directory for the files, which is created.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unsynchronised: list[Path] = []

    def load(self) -> list[tuple[int, int]]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in self._folder.glob("*.new"):
            file.unlink(missing_ok=True)
        return [(int(file.stem), file.stat().st_size) for file in sorted(self._folder.glob("*.request"))]

    def write(self, number: int, content: bytes) -> None:
        file = self._file(number)
        new = file.with_suffix(".new")
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
                out.write(content)
            new.replace(file)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        self._unsynchronised.append(file)

    def flush(self) -> None:
        files, self._unsynchronised = self._unsynchronised, []
        for path in [*files, self._folder] if files else []:
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:  # already sent
                continue
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read(self, number: int) -> bytes:
        try:
            return self._file(number).read_bytes()
        except OSError as error:
            raise ValueError(str(error)) from None

    def remove(self, number: int) -> None:
        self._file(number).unlink(missing_ok=True)

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:015}.request"


class Request(NamedTuple):
    """A waiting request. If `number` is set, the storage contains the content of the request, and all other fields
    except `size` are empty."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    size: int
    number: int | None = None


class Outbox:
    """Sends requests in order, and repeats each one until the server accepts it.

    Args:
        name: Name of the sink.
        endpoint: The server.
        storage: Persistent storage for waiting requests. If None, they are kept in memory.

    Attributes:
        dropped: Number of requests that were dropped, because they exceeded the limit or because the server rejected
            them permanently.

    Raises:
        OSError: If the storage cannot be read.
    """

    def __init__(self, name: str, endpoint: Endpoint, storage: RequestStorage | None = None) -> None:
        self.name, self.dropped, self.sent = name, 0, 0
        self._requests, self._storage = Requests(endpoint), storage
        stored = [] if storage is None else storage.load()
        self._waiting = deque(Request("", {}, b"", size, number) for number, size in stored)
        self._bytes, self._is_closed = sum(size for _, size in stored), False
        self._end = math.inf
        self._number = max((number for number, _ in stored), default=-1) + 1
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Add a request to the queue."""
        request = Request(path, headers, body, len(body))
        with self._change:
            if self._storage is not None:
                request = self._write(self._storage, request)
            self._waiting.append(request)
            self._bytes += request.size
            most, most_bytes = (
                (MOST_WAITING, MOST_WAITING_BYTES) if self._storage is None else (MOST_STORED, MOST_STORED_BYTES)
            )
            while self.waiting > most or (self._bytes > most_bytes and self.waiting > 1):
                self._remove()
                self.dropped += 1
            self._change.notify_all()

    def flush(self) -> None:
        """Wait until the stored requests would survive a crash of the operating system."""
        if self._storage is not None:
            with self._change:
                self._storage.flush()

    def close(self) -> None:
        """Try to send the waiting requests for up to CLOSING_SECONDS, then stop."""
        with self._change:
            self._is_closed, self._end = True, time.monotonic() + CLOSING_SECONDS
            self._change.notify_all()
        self._thread.join(CLOSING_SECONDS)

    def _write(self, storage: RequestStorage, request: Request) -> Request:
        """Store a request, and return the request as it waits in the queue. If the storage is not available, the
        content of the request stays in memory."""
        content = orjson.dumps({"path": request.path, "headers": dict(request.headers)}) + b"\n" + request.body
        try:
            storage.write(self._number, content)
        except OSError as error:
            logger.warning("sink %s: %s", self.name, error)
            return request
        self._number += 1
        return Request("", {}, b"", len(content), self._number - 1)

    def _remove(self) -> None:
        request = self._waiting.popleft()
        self._bytes -= request.size
        if self._storage is not None and request.number is not None:
            try:
                self._storage.remove(request.number)
            except (OSError, ValueError) as error:  # a restart sends it again
                logger.warning("sink %s: %s", self.name, error)

    def _try(self, request: Request) -> bool:
        """Send a request. Return True if it was sent or dropped, and False if it must be sent again."""
        try:
            if self._storage is not None and request.number is not None:
                head, _, body = self._storage.read(request.number).partition(b"\n")
                content = orjson.loads(head)
                request = Request(content["path"], content["headers"], body, 0)
            self._requests.send(request.path, request.body, request.headers)
        except SourceError as error:
            logger.warning("sink %s: %s", self.name, error)
            is_over = error.is_final or (self._is_closed and self._storage is None)
            self.dropped += is_over
            return is_over
        except OSError as error:
            logger.warning("sink %s: %s", self.name, error)
            return False
        except (ValueError, KeyError) as error:
            logger.warning("sink %s: dropped request %s, which cannot be read: %s", self.name, request.number, error)
            self.dropped += 1
            return True
        self.sent += 1
        return True

    def _run(self) -> None:
        pause = 1.0
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting or time.monotonic() > self._end:
                    return
                request = self._waiting[0]
            is_done = self._try(request)
            with self._change:
                if is_done:
                    pause = 1.0
                    if self._waiting and self._waiting[0] is request:
                        self._remove()
                elif self._is_closed:
                    return
                else:
                    self._change.wait_for(lambda: self._is_closed, pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
