"""The states of a watch in two files, so that nothing is lost or counted twice.

    FILE            all states at some time, replaced as a whole
    FILE.journal    the rows since then, appended and synchronised to disk at each step

A restart reads the states and filters the rows of the journal again, with the same results bit for bit. Each file is a
list of frames: length, and content sealed by the state keys, or preceded by its digest where there are none. A journal
of another generation than the states belongs to the states before; an incomplete frame at its end was never confirmed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import orjson

from rfa.runtime.state.keys import StateKeys
from rfa.runtime.state.names import StateScope
from rfa.runtime.state.sealer import SealBroken, Sealer
from rfa.watch.filters import QueryFilter, Rows
from rfa.watch.selectors import Labels

MAGIC: Final = "rfa watch 2"
_LENGTH: Final = struct.Struct("<I")
_GENERATION: Final = struct.Struct("<Q")
_DIGEST_BYTES: Final = 16
_SCOPE: Final = StateScope("watch", "filter", "")
MOST_FRAME: Final = 1 << 30
# Series whose states are in one frame.
SERIES_PER_FRAME: Final = 256
Cursors = dict[str, Any]


class StateError(ValueError):
    """A file of states that cannot be used; the message says why."""


class Store:
    """The files of a watch. One process at a time.

    Args:
        path: of the states.
        keys: that seal them; none: they have only digests.

    Raises:
        StateError: another process uses the file.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, keys: Sequence[bytes] = ()) -> None:
        self._path, self._journal_path = path, path.with_name(f"{path.name}.journal")
        self._sealer = Sealer(StateKeys(keys), "watch") if keys else None
        self._generation, self._index = 0, 0
        self._journal: BinaryIO | None = None
        self._lock = path.with_name(f"{path.name}.lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StateError(f"{path}: another process uses this file") from None

    def load(self, filters: Mapping[str, QueryFilter]) -> tuple[Cursors, list[str]]:
        """Restore the states of filters.

        Returns:
            The cursors of the sources, and the queries whose stored states belong to another expression or model: these
            start anew.

        Raises:
            StateError: a file was altered, or sealed by other keys.
        """
        if not self._path.exists():
            return {}, []
        with self._path.open("rb") as file:
            frames = self._frames(file, "states")
            header = orjson.loads(_first(frames, self._path))
            if header["magic"] != MAGIC:
                raise StateError(f"{self._path}: was written by another version: remove it to start anew")
            self._generation = header["generation"]
            cursors, stored = header["cursors"], header["queries"]
            restored = {name for name, one in stored.items() if name in filters and _fits(filters[name], name, one)}
            for name, one in stored.items():
                _restore(filters[name] if name in restored else None, one, frames)
        self._replay({name: filters[name] for name in restored}, cursors)
        lost = [name for name in stored if name in filters and name not in restored]
        return {name: cursor for name, cursor in cursors.items() if name in restored or name not in filters}, lost

    def append(self, rows: Mapping[str, Rows], cursors: Cursors) -> None:
        """Confirm rows that were filtered, and how far the sources were read."""
        if self._journal is None:
            raise RuntimeError("there are no states that rows could be added to")
        header = {
            "cursors": cursors,
            "rows": {name: [len(one), one.new, one.gone] for name, one in rows.items()},
        }
        arrays = [array.tobytes() for one in rows.values() for array in (one.slots, one.times, one.values)]
        self._write(self._journal, "journal", _packed(header, arrays))
        _synchronise(self._journal)

    def save(self, filters: Mapping[str, QueryFilter], cursors: Cursors) -> None:
        """Replace the stored states, and begin an empty journal."""
        self._generation += 1
        queries = {
            name: {
                "digest": one.digest,
                "slots": list(one.labels),
                "labels": list(one.labels.values()),
                "fields": one.fields,
            }
            for name, one in filters.items()
        }
        header = {"magic": MAGIC, "generation": self._generation, "cursors": cursors, "queries": queries}
        self._replace(self._path, lambda file: self._write_states(file, orjson.dumps(header), filters))
        if self._journal is not None:
            self._journal.close()
        self._replace(self._journal_path, lambda file: file.write(_GENERATION.pack(self._generation)))
        self._index = 0
        self._journal = self._journal_path.open("ab")

    def close(self) -> None:
        """Let another process use the files."""
        if self._journal is not None:
            self._journal.close()
        self._lock.close()

    def _write_states(self, file: BinaryIO, header: bytes, filters: Mapping[str, QueryFilter]) -> None:
        self._index = 0
        self._write(file, "states", header)
        for one in filters.values():
            slots = np.array(list(one.labels), np.int64)
            for first in range(0, len(slots), SERIES_PER_FRAME):
                part = slots[first : first + SERIES_PER_FRAME]
                packed = [one.states.packed[slot] for slot in part.tolist()]
                sizes = np.array(list(map(len, packed)), np.int64)
                own = [array[part].tobytes() for array in one.pool.arrays.values()]
                self._write(file, "states", b"".join([*own, sizes.tobytes(), *packed]))

    def _replay(self, filters: Mapping[str, QueryFilter], cursors: Cursors) -> None:
        if not self._journal_path.exists():
            return
        with self._journal_path.open("rb") as file:
            if file.read(_GENERATION.size) != _GENERATION.pack(self._generation):
                return  # of the states before: the process ended between the two files
            for content in self._frames(file, "journal"):
                header, body = _unpacked(content)
                for name, (count, new, gone) in header["rows"].items():
                    slots, times, values = (
                        np.frombuffer(body, kind, count, 8 * count * k)
                        for k, kind in enumerate((np.int64, np.float64, np.float64))
                    )
                    body = body[24 * count :]
                    if name in filters:
                        rows = Rows(slots, times, values, [(slot, _labels(one)) for slot, one in new], gone)
                        for _ in filters[name].apply(rows):
                            pass
                cursors |= header["cursors"]

    # Frames.

    def _write(self, file: BinaryIO, kind: str, content: bytes) -> None:
        sealed = self._seal(content, kind)
        file.write(_LENGTH.pack(len(sealed)) + sealed)
        self._index += 1

    def _frames(self, file: BinaryIO, kind: str) -> Iterator[bytes]:
        """The contents of a file. An incomplete frame at the end of a journal ends it."""
        self._index = 0
        while len(begin := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(begin)
            sealed = file.read(length) if length <= MOST_FRAME else b""
            try:
                content = self._open(sealed, kind)
            except SealBroken as error:
                if kind == "journal" and not file.read(1):
                    return
                raise StateError(f"{file.name}: {error}; check RFA_STATE_KEYS, or remove it to start anew") from None
            self._index += 1
            yield content

    def _purpose(self, kind: str) -> str:
        # The generation is in the header of the states, so a frame of theirs is bound to its position only.
        return f"{kind} {self._generation if kind == 'journal' else 0} {self._index}"

    def _seal(self, content: bytes, kind: str) -> bytes:
        if self._sealer is not None:
            return self._sealer.seal(content, _SCOPE, self._purpose(kind))
        return self._digest(content, kind) + content

    def _open(self, sealed: bytes, kind: str) -> bytes:
        if self._sealer is not None:
            return self._sealer.open(sealed, _SCOPE, self._purpose(kind))
        content = sealed[_DIGEST_BYTES:]
        if sealed[:_DIGEST_BYTES] != self._digest(content, kind):
            raise SealBroken("altered, or sealed by keys")
        return content

    def _digest(self, content: bytes, kind: str) -> bytes:
        found = hashlib.blake2b(self._purpose(kind).encode() + b"\0", digest_size=_DIGEST_BYTES)
        found.update(content)
        return found.digest()

    def _replace(self, path: Path, write: Callable[[BinaryIO], object]) -> None:
        new = path.with_name(f"{path.name}.new")
        with new.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            write(file)
            _synchronise(file)
        new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _first(frames: Iterator[bytes], path: Path) -> bytes:
    for content in frames:
        return content
    raise StateError(f"{path}: is empty: remove it to start anew")


def _fits(target: QueryFilter, name: str, stored: Mapping[str, Any]) -> bool:
    if stored["digest"] != target.digest or stored["fields"] != target.fields:
        return False
    if (most := max(stored["slots"], default=-1) + 1) > target.pool.capacity:
        raise StateError(f"query {name}: series_limit must be at least {most}, because so many have a stored state")
    return True


def _restore(target: QueryFilter | None, stored: Mapping[str, Any], frames: Iterator[bytes]) -> None:
    """Read the states of a query; without a target they are skipped."""
    slots = np.array(stored["slots"], np.int64)
    packed: dict[int, bytes] = {}
    for first in range(0, len(slots), SERIES_PER_FRAME):
        part, content, position = slots[first : first + SERIES_PER_FRAME], next(frames), 0
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


def _synchronise(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
