"""Store the states of a watch and a journal, so that no observation is lost or counted twice.

The storage contains all states at some time, and the rows since then, which are confirmed at each step. After a
restart, the states are read and the rows of the journal are filtered again, with the same results, bit for bit. Each
frame is sealed with the state keys, or preceded by its digest if there are no keys. An incomplete frame at the end of
the journal was never confirmed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from rfa.library.watch.config import StateOptions
from rfa.library.watch.filters import QueryFilter, Rows
from rfa.library.watch.selectors import Labels
from rfa.library.watch.storage import FileStorage, RedisRequests, RedisStorage, StateError, Storage
from rfa.runtime.state.keys import StateKeys
from rfa.runtime.state.names import StateScope
from rfa.runtime.state.sealer import SealBroken, Sealer

MAGIC: Final = "rfa watch 2"
_LENGTH: Final = struct.Struct("<I")
_DIGEST_BYTES: Final = 16
_SCOPE: Final = StateScope("watch", "filter", "")
# Number of series whose states are in one frame.
SERIES_PER_FRAME: Final = 256
# Maximum number of bytes of rows that wait while the storage cannot be written.
MOST_WAITING_BYTES: Final = 64 << 20
Cursors = dict[str, Any]
# A function that filters rows of the journal again. Its arguments are the rows of each query and the cursors that were
# stored with them.
Replay = Callable[[Sequence[tuple[QueryFilter, Rows]], Cursors], None]


class StoreUnavailable(OSError):
    """Raised when the storage is temporarily not available for writing."""


class Store:
    """Stores the states of a watch.

    Args:
        storage: Storage for the frames.
        keys: Keys that seal the states. Without keys, the states are protected only by digests.
    """

    def __init__(self, storage: Storage, keys: Sequence[bytes] = ()) -> None:
        self._storage = storage
        self._sealer = Sealer(StateKeys(keys), "watch") if keys else None
        self._generation = self._count = 0
        self._waiting: list[bytes] = []

    @property
    def name(self) -> str:
        """Name of the storage, used in messages."""
        return self._storage.name

    def load(self, filters: Mapping[str, QueryFilter], replay: Replay) -> tuple[Cursors, list[str]]:
        """Restore the states of the filters from the storage.

        Args:
            filters: Filter of each query.
            replay: Function that filters the rows of the journal again.

        Returns:
            The cursors of the sources, and the names of the queries whose stored states belong to another expression or
            model. These queries start from empty states.

        Raises:
            StateError: If a frame was altered, or sealed with other keys.
            OSError: If the storage cannot be read.
        """
        frames = self._opened(self._storage.states(), "states")
        first = next(frames, None)
        if first is None:
            return {}, []
        header = orjson.loads(first)
        if header["magic"] != MAGIC:
            raise StateError(f"{self.name} was written by another version; delete it to start from empty states")
        self._generation = header["generation"]
        cursors, stored = header["cursors"], header["queries"]
        restored = {name for name, one in stored.items() if name in filters and _fits(filters[name], name, one)}
        for name, one in stored.items():
            _restore(filters[name] if name in restored else None, one, frames)
        self._replay({name: filters[name] for name in restored}, cursors, replay)
        lost = [name for name in stored if name in filters and name not in restored]
        return {name: cursor for name, cursor in cursors.items() if name in restored or name not in filters}, lost

    def append(self, rows: Mapping[str, Rows], cursors: Cursors) -> None:
        """Store rows that were filtered, together with the positions of the sources. The rows are then confirmed.

        Raises:
            StoreUnavailable: If the rows cannot be written at present. The next call of `append`, `flush` or `save`
                writes them.
            StateError: If too many rows are waiting, or another process has started to use the storage.
        """
        header = {
            "cursors": cursors,
            "rows": {name: [len(one), one.new, one.gone] for name, one in rows.items()},
        }
        arrays = [array.tobytes() for one in rows.values() for array in (one.slots, one.times, one.values)]
        self._waiting.append(self._seal(_packed(header, arrays), "journal", self._count + len(self._waiting)))
        if sum(map(len, self._waiting)) > MOST_WAITING_BYTES:
            raise StateError(
                f"{self.name} cannot be written, and more than {MOST_WAITING_BYTES:,} bytes are waiting; check "
                "the storage, and start the command again"
            )
        self.flush()

    def flush(self) -> None:
        """Confirm the waiting rows.

        Raises:
            StoreUnavailable: If the rows cannot be written at present.
            StateError: If another process has started to use the storage.
        """
        while self._waiting:
            try:
                self._storage.append(self._count, self._waiting[0])
            except OSError as error:
                raise StoreUnavailable(f"{self.name}: {error.strerror or error}") from None
            self._count += 1
            del self._waiting[0]

    def save(self, filters: Mapping[str, QueryFilter], cursors: Cursors) -> None:
        """Replace the stored states, and start an empty journal.

        Raises:
            OSError: If the states cannot be written at present. The previous states and journal are kept.
            StateError: If another process has started to use the storage.
        """
        queries = {
            name: {
                "digest": one.digest,
                "slots": list(one.labels),
                "labels": list(one.labels.values()),
                "fields": one.fields,
            }
            for name, one in filters.items()
        }
        generation = self._generation + 1
        header = {"magic": MAGIC, "generation": generation, "cursors": cursors, "queries": queries}
        contents = _contents(orjson.dumps(header), filters)
        self._storage.replace(generation, (self._seal(one, "states", k) for k, one in enumerate(contents)))
        self._generation, self._count = generation, 0
        self._waiting.clear()

    def requests(self, sink: str) -> RedisRequests | None:
        """Return the storage for waiting requests of a sink, or None if the states are not stored in Redis."""
        if not isinstance(self._storage, RedisStorage):
            return None
        kind = f"outbox {sink}"
        return RedisRequests(
            self._storage,
            sink,
            lambda content, k: self._seal(content, kind, k),
            lambda sealed, k: self._open(sealed, kind, k),
        )

    def close(self) -> None:
        """Release the storage, so that another process can use it."""
        self._storage.close()

    def _replay(self, filters: Mapping[str, QueryFilter], cursors: Cursors, replay: Replay) -> None:
        for content in self._opened(self._storage.journal(self._generation), "journal"):
            header, body = _unpacked(content)
            found = []
            for name, (count, new, gone) in header["rows"].items():
                slots, times, values = (
                    np.frombuffer(body, kind, count, 8 * count * k)
                    for k, kind in enumerate((np.int64, np.float64, np.float64))
                )
                body = body[24 * count :]
                if name in filters:
                    rows = Rows(slots, times, values, [(slot, _labels(one)) for slot, one in new], gone)
                    found.append((filters[name], rows))
            replay(found, header["cursors"])
            cursors |= header["cursors"]

    # Frames.

    def _opened(self, frames: Iterator[bytes], kind: str) -> Iterator[bytes]:
        """Open frames and yield their contents. If the last frame of a journal cannot be opened, the journal ends
        before it."""
        for k, sealed in enumerate(frames):
            try:
                content = self._open(sealed, kind, k)
            except SealBroken as error:
                if kind == "journal" and next(frames, None) is None:
                    return
                raise StateError(
                    f"{self.name}: {error}; check RFA_STATE_KEYS, or delete {self.name} to start from empty states"
                ) from None
            yield content

    def _purpose(self, kind: str, index: int) -> str:
        # The header of the states contains the generation, so the frames of states are bound to their indices only.
        return f"{kind} {self._generation if kind == 'journal' else 0} {index}"

    def _seal(self, content: bytes, kind: str, index: int) -> bytes:
        if self._sealer is not None:
            return self._sealer.seal(content, _SCOPE, self._purpose(kind, index))
        return self._digest(content, kind, index) + content

    def _open(self, sealed: bytes, kind: str, index: int) -> bytes:
        if self._sealer is not None:
            return self._sealer.open(sealed, _SCOPE, self._purpose(kind, index))
        content = sealed[_DIGEST_BYTES:]
        if sealed[:_DIGEST_BYTES] != self._digest(content, kind, index):
            raise SealBroken("it was altered, or sealed with other keys")
        return content

    def _digest(self, content: bytes, kind: str, index: int) -> bytes:
        found = hashlib.blake2b(self._purpose(kind, index).encode() + b"\0", digest_size=_DIGEST_BYTES)
        found.update(content)
        return found.digest()


def open_store(options: StateOptions, keys: Sequence[bytes]) -> Store:
    """Open the store of a configuration.

    Raises:
        StateError: If another process uses the file, or there are no keys for Redis.
        OSError: If the store cannot be used.
    """
    if options.file is not None:
        return Store(FileStorage(options.file), keys)
    if not keys:
        raise StateError(
            "state.redis: set RFA_STATE_KEYS or RFA_STATE_KEYS_FILE, because states in Redis must be sealed"
        )
    file = options.password_file
    password = None if file is None else file.read_text(encoding="utf-8").strip()
    return Store(RedisStorage(str(options.redis), options.name, password), keys)


def _contents(header: bytes, filters: Mapping[str, QueryFilter]) -> Iterator[bytes]:
    yield header
    for one in filters.values():
        slots = np.array(list(one.labels), np.int64)
        for first in range(0, len(slots), SERIES_PER_FRAME):
            part = slots[first : first + SERIES_PER_FRAME]
            packed = [one.states.packed[slot] for slot in part.tolist()]
            sizes = np.array(list(map(len, packed)), np.int64)
            own = [array[part].tobytes() for array in one.pool.arrays.values()]
            yield b"".join([*own, sizes.tobytes(), *packed])


def _fits(target: QueryFilter, name: str, stored: Mapping[str, Any]) -> bool:
    if stored["digest"] != target.digest or stored["fields"] != target.fields:
        return False
    if (most := max(stored["slots"], default=-1) + 1) > target.pool.capacity:
        raise StateError(
            f"query {name}: series_limit must be at least {most}, the number of series whose state is stored"
        )
    return True


def _restore(target: QueryFilter | None, stored: Mapping[str, Any], frames: Iterator[bytes]) -> None:
    """Read the states of a query. If `target` is None, the states are skipped."""
    slots = np.array(stored["slots"], np.int64)
    packed: dict[int, bytes] = {}
    for first in range(0, len(slots), SERIES_PER_FRAME):
        part, content, position = slots[first : first + SERIES_PER_FRAME], next(frames, None), 0
        if content is None:
            raise StateError("the stored states are incomplete; remove them to start from empty states")
        if target is None:
            continue
        for array in target.pool.arrays.values():
            found = np.frombuffer(content, array.dtype, array[part].size, position)
            array[part] = found.reshape(array[part].shape)
            position += found.nbytes
        sizes = np.frombuffer(content, np.int64, len(part), position)
        position += sizes.nbytes
        for slot, size in zip(part.tolist(), sizes.tolist(), strict=True):
            packed[slot] = content[position : position + size]
            position += size
    if target is not None:
        series = zip(stored["slots"], stored["labels"], strict=True)
        target.restore({slot: _labels(labels) for slot, labels in series}, packed)


def _labels(pairs: Sequence[Sequence[str]]) -> Labels:
    return tuple((name, value) for name, value in pairs)


def _packed(header: Any, arrays: Sequence[bytes]) -> bytes:
    text = orjson.dumps(header)
    return b"".join((_LENGTH.pack(len(text)), text, *arrays))


def _unpacked(content: bytes) -> tuple[Any, bytes]:
    (length,) = _LENGTH.unpack_from(content)
    end = _LENGTH.size + length
    return orjson.loads(content[_LENGTH.size : end]), content[end:]
