"""What a long fit has finished, kept on disk as it goes: the same command, started again, does not do it again.

A file of lines of JSON. The first is a digest of what was asked and of what; a file with another is begun anew. A line
that was not written to its end is not there, nor are those after one that cannot be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


class Kept:
    """Parts of a fit by their names.

    Args:
        path: of the file, made with its folder when the first part is added.
        asked: what was asked, as JSON can say it.
        arrays: what it was asked of.
    """

    def __init__(self, path: Path, asked: Any, arrays: Iterable[np.ndarray]) -> None:
        self.path = path
        found = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
        for array in arrays:
            found.update(np.ascontiguousarray(array).tobytes())
        self._digest = found.hexdigest()
        self._parts: dict[str, Any] = {}
        # Of the file, what is of this fit and whole.
        self._whole = self._read()

    def _read(self) -> int:
        try:
            first, *lines = self.path.read_bytes().splitlines(keepends=True)
        except (OSError, ValueError):
            return 0
        if first != self._digest.encode() + b"\n":
            return 0
        size = len(first)
        for line in lines:
            part = _part(line)
            if part is None:
                break
            self._parts[part["name"]] = part["found"]
            size += len(line)
        return size

    def __len__(self) -> int:
        return len(self._parts)

    def get(self, name: str) -> Any:
        """What was found, or None."""
        return self._parts.get(name)

    def add(self, name: str, found: Any) -> None:
        """Keep a part."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"name": name, "found": found}).encode() + b"\n"
        if self._whole == 0:
            line = self._digest.encode() + b"\n" + line
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(self._whole)
            file.seek(self._whole)
            file.write(line)
        self._whole += len(line)
        self._parts[name] = found

    def remove(self) -> None:
        """All is done."""
        self.path.unlink(missing_ok=True)


def _part(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None where it is no whole one."""
    try:
        part = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return part if isinstance(part, dict) and set(part) == {"name", "found"} else None


__all__ = ["Kept"]
