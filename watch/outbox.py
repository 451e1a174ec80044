"""Requests of a sink to another server, sent in a thread of their own, so that a slow server delays no step."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from rfa.watch.config import Endpoint
from rfa.watch.prometheus import Requests, SourceError

logger = logging.getLogger("rfa.watch")
# Requests that wait in memory, or in a folder. Of more, the oldest are dropped.
MOST_WAITING: Final = 200
MOST_WAITING_BYTES: Final = 64 << 20
MOST_STORED: Final = 10_000
MOST_STORED_BYTES: Final = 256 << 20
LONGEST_PAUSE: Final = 30.0
CLOSING_SECONDS: Final = 5.0


class Request(NamedTuple):
    """A request that waits; its content is in a file, if it has one."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    size: int
    file: Path | None = None


class Outbox:
    """Sends requests in order, each until the server takes it.

    Args:
        name: of the sink.
        endpoint: the server.
        folder: where requests wait, also after the end of the process; None: in memory.

    Attributes:
        dropped: requests that did not fit any more, or that the server refused for good.
    """

    def __init__(self, name: str, endpoint: Endpoint, folder: Path | None = None) -> None:
        self.name, self.dropped, self.sent = name, 0, 0
        self._requests, self._folder = Requests(endpoint), folder
        self._waiting: deque[Request] = deque()
        self._unsynchronised: list[Path] = []
        self._bytes, self._number, self._is_closed = 0, 0, False
        if folder is not None:
            self._read(folder)
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request later."""
        request = Request(path, headers, body, len(body))
        with self._change:
            if self._folder is not None:
                request = self._write(self._folder, request)
            self._waiting.append(request)
            self._bytes += request.size
            most, most_bytes = (
                (MOST_WAITING, MOST_WAITING_BYTES) if self._folder is None else (MOST_STORED, MOST_STORED_BYTES)
            )
            while self.waiting > most or (self._bytes > most_bytes and self.waiting > 1):
                self._remove()
                self.dropped += 1
            self._change.notify_all()

    def flush(self) -> None:
        """Wait until the requests in files are safe from a crash of the system."""
        with self._change:
            files, self._unsynchronised = self._unsynchronised, []
        for path in [*files, self._folder] if files and self._folder is not None else []:
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:  # sent already
                continue
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Send what waits, for some seconds."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()
        self._thread.join(CLOSING_SECONDS)

    def _read(self, folder: Path) -> None:
        """Continue with the requests of an earlier process."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in folder.glob("*.new"):
            file.unlink(missing_ok=True)
        for file in sorted(folder.glob("*.request")):
            size = file.stat().st_size
            self._waiting.append(Request("", {}, b"", size, file))
            self._bytes += size
            self._number = int(file.stem) + 1

    def _write(self, folder: Path, request: Request) -> Request:
        """Store a request. If that fails, it waits in memory."""
        file = folder / f"{self._number:015}.request"
        new = file.with_suffix(".new")
        content = orjson.dumps({"path": request.path, "headers": dict(request.headers)}) + b"\n" + request.body
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
                out.write(content)
            new.replace(file)
        except OSError as error:
            logger.warning("sink %s: %s", self.name, error)
            new.unlink(missing_ok=True)
            return request
        self._number += 1
        self._unsynchronised.append(file)
        return Request("", {}, b"", len(content), file)

    def _remove(self) -> None:
        request = self._waiting.popleft()
        self._bytes -= request.size
        if request.file is not None:
            request.file.unlink(missing_ok=True)

    def _try(self, request: Request) -> bool:
        """Send a request, and return whether it need not be sent again."""
        try:
            if request.file is not None:
                head, _, body = request.file.read_bytes().partition(b"\n")
                content = orjson.loads(head)
                request = Request(content["path"], content["headers"], body, 0)
            self._requests.send(request.path, request.body, request.headers)
        except SourceError as error:
            logger.warning("sink %s: %s", self.name, error)
            is_over = error.is_final or (self._is_closed and self._folder is None)
            self.dropped += is_over
            return is_over
        except (OSError, ValueError, KeyError) as error:
            logger.warning("sink %s: %s cannot be read: %s", self.name, request.file, error)
            self.dropped += 1
            return True
        self.sent += 1
        return True

    def _run(self) -> None:
        pause = 1.0
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
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
