"""Logging with one line per record, as text or JSON. A thread writes the lines.

Records may contain fields, as in `logger.info("request", extra={"fields": {...}})`. Lines do not contain the content of
requests. Therefore, exceptions are logged with their type and traceback, but without their message, which may quote a
value such as a prompt.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, Final

import orjson

from rfa.service.access.request_log import request_id
from rfa.service.settings import Settings

STDERR: Final = 2
# Writes of this size to a pipe are atomic (PIPE_BUF on Linux), so lines of several processes do not mix.
CHUNK_BYTES: Final = 4096
# The writer sleeps between batches. Waking it for each line would take the interpreter lock from the event loop.
BATCH_SECONDS: Final = 0.02
CLOSE_SECONDS: Final = 2.0
LONGEST_BACKLOG: Final = 10_000
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9._:/{}+-]+")


def configure_logging(settings: Settings) -> None:
    """Configure logging so that all records of this process are written to stderr, in the format of the settings.

    uvicorn must be started with `log_config=None`, so that it does not replace this configuration.
    """
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    handler = BackgroundHandler(_write_stderr)
    handler.setFormatter(JSONFormatter() if settings.server.log_format == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def log_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return a mapping from names to fields of a record. The first field is the request id, if the record has one."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    own = getattr(record, "request_id", "")
    return {"id": own, **fields} if own else dict(fields)


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an exception as text, without exception messages. The tracebacks of its causes come
    first."""
    text = "".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__module__}.{type(error).__qualname__}"
    if isinstance(error, BaseExceptionGroup):
        text = "\ntogether with\n".join([text, *(traceback_text(part) for part in error.exceptions)])
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return text if cause is None else f"{traceback_text(cause)}\nled to\n{text}"


class TextFormatter(logging.Formatter):
    """Formats a record as one line `TIME LEVEL LOGGER: MESSAGE name=value …`. The traceback of an exception follows on
    further lines."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_text_value(value)}" for name, value in log_fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {_printable(record.getMessage())}{fields}"
        if record.exc_info and record.exc_info[1]:
            line += "\n" + traceback_text(record.exc_info[1])
        return line


class JSONFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line, with time, level, logger, message, fields and exception."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **log_fields(record),
        }
        if record.exc_info and record.exc_info[1]:
            document["exception"] = traceback_text(record.exc_info[1])
        try:
            return orjson.dumps(document, default=str).decode()
        except TypeError:  # the record contains a lone surrogate
            clean = {name: _printable(value) if isinstance(value, str) else value for name, value in document.items()}
            return orjson.dumps(clean, default=str).decode()


class BackgroundHandler(logging.Handler):
    """Formats and writes records in a thread, so that a blocked reader of the log does not block the event loop.

    Up to `LONGEST_BACKLOG` records are queued. Further records are dropped, and their number is logged.

    Args:
        write: Function that writes the bytes of one or more lines.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._write = write
        self._start()
        os.register_at_fork(after_in_child=self._start_again)

    def _start(self) -> None:
        self._queue: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        self._dropped = 0
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rfa-log", daemon=True)
        self._thread.start()

    def _start_again(self) -> None:
        """Start the thread with a new queue in a forked child process. The child does not have the thread of its
        parent, and the old queue may be locked."""
        if not self._is_closed.is_set():
            self._start()

    def emit(self, record: logging.LogRecord) -> None:
        """Add a record to the queue. This does not block or raise an exception."""
        if self._queue.qsize() >= LONGEST_BACKLOG:
            self._dropped += 1
            return
        record.request_id = request_id.get()
        self._queue.put(record)

    def close(self) -> None:
        """Write the records in the queue, for at most `CLOSE_SECONDS`."""
        if not self._is_closed.is_set():
            self._is_closed.set()
            self._queue.put(None)
            self._thread.join(CLOSE_SECONDS)
        super().close()

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            chunk = self._line(record)
            while not self._queue.empty() and (record := self._queue.get()) is not None:
                line = self._line(record)
                if len(chunk) + len(line) > CHUNK_BYTES:
                    self._write(chunk)
                    chunk = b""
                chunk += line
            self._write(chunk + self._drops())
            if record is None:
                return
            self._is_closed.wait(BATCH_SECONDS)

    def _line(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except Exception as error:
            text = self.format(
                _own_record("a log record of %s could not be formatted: %s", record.name, type(error).__name__)
            )
        return text.encode("utf-8", "backslashreplace") + b"\n"

    def _drops(self) -> bytes:
        dropped, self._dropped = self._dropped, 0
        return (
            self._line(
                _own_record(
                    "%d log records were dropped, because they were produced faster than they could be written", dropped
                )
            )
            if dropped
            else b""
        )


def _own_record(message: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, values, None)


def _write_stderr(data: bytes) -> None:
    """Write to stderr without Python's buffer, because a blocked write would hold the lock of the buffer at exit.
    Errors are ignored."""
    while data:
        try:
            data = data[os.write(STDERR, data) :]
        except BlockingIOError:
            time.sleep(BATCH_SECONDS)
        except OSError:
            return


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


def _printable(text: str) -> str:
    """Return the text with control characters and line breaks escaped."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _text_value(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if _PLAIN_VALUE.fullmatch(text) else orjson.dumps(_printable(text)).decode()
