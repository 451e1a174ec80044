"""Store the states of a watch, in two files or in lists in Redis.

A storage contains the frames of the states, which are replaced as a whole, and the frames of a journal with the rows
since then. The journal also contains the generation of the states. A journal with another generation belongs to states
that were replaced.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from rfa.runtime.state.sealer import SealBroken

_LENGTH: Final = struct.Struct("<I")
_GENERATION: Final = struct.Struct("<Q")
MOST_FRAME: Final = 1 << 30
# For Redis: timeout of a request and of all its repetitions, pause between repetitions, and number of frames per read.
_TIMEOUT_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.2
_FRAMES: Final = 4
_UNUSED_SECONDS: Final = 3_600


class StateError(ValueError):
    """Raised when stored states cannot be used. The message contains the reason."""


class Storage(Protocol):
    """Interface of a storage for the frames of states and of a journal. It is used by one process at a time.

    Reading and writing raise an OSError if the storage is temporarily not available, and a StateError if another
    process has started to use it.
    """

    name: str

    def states(self) -> Iterator[bytes]:
        """Yield the frames of the states. There are none before the first call of `replace`."""
        ...

    def journal(self, generation: int) -> Iterator[bytes]:
        """Yield the frames of the journal, up to the first incomplete frame."""
        ...

    def replace(self, generation: int, frames: Iterable[bytes]) -> None:
        """Replace the states, and start an empty journal."""
        ...

    def append(self, index: int, frame: bytes) -> None:
        """Append the frame of the given index to the journal, and write it to disk. After an error, the call may be
        repeated."""
        ...

    def close(self) -> None:
        """Release the storage, so that another process can use it."""
        ...


class FileStorage:
    """Storage in the files FILE and FILE.journal. Each frame is preceded by its length.

    Args:
        path: File of the states.

    Raises:
        StateError: If another process uses the file.
        OSError: If the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.name, self._path, self._journal_path = str(path), path, path.with_name(f"{path.name}.journal")
        self._journal: BinaryIO | None = None
        self._ends = [_GENERATION.size]
        self._lock = path.with_name(f"{path.name}.lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StateError(
                f"{path}: another process is using this file; stop that process, or choose another file"
            ) from None

    def states(self) -> Iterator[bytes]:
        if self._path.exists():
            with self._path.open("rb") as file:
                yield from _frames(file)

    def journal(self, generation: int) -> Iterator[bytes]:
        if self._journal_path.exists():
            with self._journal_path.open("rb") as file:
                # Another generation means that the process ended between the replacements of the two files.
                if file.read(_GENERATION.size) == _GENERATION.pack(generation):
                    yield from _frames(file)

    def replace(self, generation: int, frames: Iterable[bytes]) -> None:
        _write(self._path, (part for frame in frames for part in (_LENGTH.pack(len(frame)), frame)))
        _write(self._journal_path, [_GENERATION.pack(generation)])
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._move(self._path)
        self._move(self._journal_path)
        self._ends = [_GENERATION.size]
        self._journal = self._journal_path.open("r+b", buffering=0)

    def append(self, index: int, frame: bytes) -> None:
        if self._journal is None:
            raise OSError(f"{self._journal_path}: the journal is not open, because the states have not been saved")
        del self._ends[index + 1 :]
        self._journal.seek(self._ends[index])
        content = memoryview(_LENGTH.pack(len(frame)) + frame)
        while content:
            content = content[self._journal.write(content) :]
        end = self._journal.tell()
        self._journal.truncate()
        os.fsync(self._journal.fileno())
        self._ends.append(end)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        self._lock.close()

    def _move(self, path: Path) -> None:
        """Rename a temporary file to its final path."""
        _new(path).replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _new(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _write(path: Path, parts: Iterable[bytes]) -> None:
    """Write the parts of a file to a temporary file in the same directory. If an error occurs, the temporary file is
    removed."""
    try:
        with _new(path).open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        _new(path).unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def _frames(file: BinaryIO) -> Iterator[bytes]:
    while len(begin := file.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(begin)
        frame = file.read(length) if length <= MOST_FRAME else b""
        if len(frame) < length:
            return
        yield frame


class RedisStorage:
    """Storage in lists in Redis. The caller seals the frames.

        rfa:watch:NAME              a hash: `owner` is the process that writes, and `set` names the current lists
        rfa:watch:NAME:states:SET   frames of the states
        rfa:watch:NAME:journal:SET  frames of their journal
        rfa:watch:NAME:outbox:SINK  a hash of the waiting requests by number (see `RedisRequests`)

    The process that started last is the owner. Writes of earlier processes fail, so no row is confirmed twice.

    Args:
        url: `redis://` or `rediss://`.
        name: Name of the watch.
        password: Password of Redis, if the URL contains none.

    Raises:
        StateError: If the URL is malformed.
        OSError: If Redis does not respond.
    """

    def __init__(self, url: str, name: str, password: str | None = None) -> None:
        import redis

        self.name, self._root, self._owner = f"Redis rfa:watch:{name}", f"rfa:watch:{name}", secrets.token_hex(16)
        self._errors = redis.RedisError
        try:
            self._redis: Any = redis.Redis.from_url(
                url, **({} if password is None else {"password": password}),
                socket_timeout=_TIMEOUT_SECONDS, socket_connect_timeout=_TIMEOUT_SECONDS,
            )  # fmt: skip
        except ValueError as error:
            raise StateError(f"state.redis: {error}") from None
        self._set = ""
        self._call(lambda: self._redis.hset(self._root, "owner", self._owner))

    def states(self) -> Iterator[bytes]:
        self._set = self._call(self._stored_set)
        return self._read(self._key("states", self._set))

    def journal(self, generation: int) -> Iterator[bytes]:
        return self._read(self._key("journal", self._set))

    def replace(self, generation: int, frames: Iterable[bytes]) -> None:
        new = f"{generation}:{self._owner}"
        states = self._key("states", new)
        self._call(lambda: self._redis.unlink(states))
        for k, frame in enumerate(frames):
            self._call(functools.partial(self._redis.rpush, states, frame))
            if k == 0:  # Redis removes the list if this process ends before it is complete
                self._call(lambda: self._redis.expire(states, _UNUSED_SECONDS))

        def change(transaction: Any) -> None:
            transaction.hset(self._root, "set", new)
            transaction.persist(states)
            transaction.unlink(self._key("states", self._set), self._key("journal", self._set))

        self._transact(change, lambda: self._stored_set() == new)
        self._set = new

    def append(self, index: int, frame: bytes) -> None:
        key = self._key("journal", self._set)
        # Frames are sealed for their index, so a frame that was added although the reply was lost must not be added
        # again.
        self._transact(
            lambda transaction: transaction.rpush(key, frame), lambda: self._redis.lindex(key, index) == frame
        )

    def close(self) -> None:
        self._redis.close()

    def _read(self, key: str) -> Iterator[bytes]:
        for first in itertools.count(0, _FRAMES):
            frames = self._call(functools.partial(self._redis.lrange, key, first, first + _FRAMES - 1))
            if not frames:
                return
            yield from frames

    def _key(self, kind: str, lists: str) -> str:
        return f"{self._root}:{kind}:{lists}"

    def _stored_set(self) -> str:
        return str((self._redis.hget(self._root, "set") or b"").decode())

    def change_outbox(self, sink: str, change: Callable[[Any, str], object]) -> None:
        """Modify the hash of the waiting requests of a sink. This process must be the owner of the storage."""
        key = self._key("outbox", sink)
        self._transact(lambda transaction: change(transaction, key), lambda: False)

    def read_outbox(self, sink: str, read: Callable[[Any, str], Any]) -> Any:
        """Read from the hash of the waiting requests of a sink, and return the result."""
        return self._call(lambda: read(self._redis, self._key("outbox", sink)))

    def _transact(self, change: Callable[[Any], object], is_done: Callable[[], bool]) -> None:
        """Apply a change exactly once as the owner, even if a reply is lost."""
        end = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                self._call(lambda: self._try_transaction(change, is_done))
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _try_transaction(self, change: Callable[[Any], object], is_done: Callable[[], bool]) -> None:
        with self._redis.pipeline(transaction=True) as transaction:
            transaction.watch(self._root)
            if transaction.hget(self._root, "owner") != self._owner.encode():
                raise StateError(
                    f"{self.name}: another process has started to use this storage; "
                    "run only one process for each storage"
                )
            if not is_done():
                transaction.multi()
                change(transaction)
                transaction.execute()

    def _call(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except self._errors as error:
            raise OSError(f"{self.name}: {error}") from None


class RedisRequests:
    """Storage for the requests of a sink in Redis. See `rfa.library.watch.outbox.RequestStorage`.

    Args:
        storage: Storage of the same watch.
        sink: Name of the sink.
        seal, open_sealed: Functions that seal and open the content of a request. Their second argument is its number.
    """

    def __init__(
        self, storage: RedisStorage, sink: str, seal: Callable[[bytes, int], bytes],
        open_sealed: Callable[[bytes, int], bytes],
    ) -> None:  # fmt: skip
        self._storage, self._sink, self._seal, self._open = storage, sink, seal, open_sealed

    def load(self) -> list[tuple[int, int]]:
        numbers = sorted(map(int, self._storage.read_outbox(self._sink, lambda redis, key: redis.hkeys(key))))
        return [(number, self._size(number)) for number in numbers]

    def _size(self, number: int) -> int:
        found: int = self._storage.read_outbox(self._sink, lambda redis, key: redis.hstrlen(key, number))
        return found

    def write(self, number: int, content: bytes) -> None:
        sealed = self._seal(content, number)
        self._storage.change_outbox(self._sink, lambda transaction, key: transaction.hset(key, number, sealed))

    def flush(self) -> None:
        """Do nothing, because Redis replies only after it has stored a request."""
        return

    def read(self, number: int) -> bytes:
        sealed = self._storage.read_outbox(self._sink, lambda redis, key: redis.hget(key, number))
        try:
            return self._open(sealed or b"", number)
        except SealBroken as error:
            raise ValueError(str(error)) from None

    def remove(self, number: int) -> None:
        self._storage.change_outbox(self._sink, lambda transaction, key: transaction.hdel(key, number))
