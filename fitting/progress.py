"""Store the completed parts of a long fit, so that the same command does not repeat them after a restart.

The file contains lines of JSON. The first line is a digest of the settings and the data of the fit. If it differs from
that of the current fit, the file is overwritten. An incomplete or malformed line is ignored, as are all lines after it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


class SavedFits:
    """Stores the completed parts of a fit in a file, under their names.

    Args:
        path: Path of the file. The file and its directory are created when the first part is added.
        request: Settings of the fit, as JSON types.
        arrays: Arrays that contain the data of the fit.
    """

    def __init__(self, path: Path, request: Any, arrays: Iterable[np.ndarray]) -> None:
        self.path = path
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode())
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        self._digest = digest.hexdigest()
        self._parts: dict[str, Any] = {}
        self._valid_bytes = self._read()

    def _read(self) -> int:
        """Read the stored parts from the file. Return the size in bytes of its complete lines."""
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
        """Return the result of a part, or None if it is not stored."""
        return self._parts.get(name)

    def add(self, name: str, found: Any) -> None:
        """Store the result of a part."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"name": name, "found": found}).encode() + b"\n"
        if self._valid_bytes == 0:
            line = self._digest.encode() + b"\n" + line
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(self._valid_bytes)
            file.seek(self._valid_bytes)
            file.write(line)
        self._valid_bytes += len(line)
        self._parts[name] = found

    def remove(self) -> None:
        """Remove the file. Call this after the whole fit is complete."""
        self.path.unlink(missing_ok=True)


def _part(line: bytes) -> dict[str, Any] | None:
    """Parse a line of the file, or return None if it is incomplete or malformed."""
    try:
        part = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return part if isinstance(part, dict) and set(part) == {"name", "found"} else None
