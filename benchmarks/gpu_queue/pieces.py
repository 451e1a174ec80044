"""Split a directory into pieces of at most 16 MiB, for machines that return only small files."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Final

LARGEST_PIECE: Final = 16 * 2**20


def pack(folder: Path, out: Path, name: str, largest: int = LARGEST_PIECE) -> list[Path]:
    """Write the files in `folder` to `NAME.tar.00`, `NAME.tar.01`, …, replacing earlier pieces of that name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            if path.is_file():
                archive.add(path, path.name)
    for earlier in out.glob(f"{name}.tar.*"):
        earlier.unlink()
    content = packed.getbuffer()
    pieces = []
    for index, start in enumerate(range(0, len(content), largest)):
        pieces.append(out / f"{name}.tar.{index:02d}")
        pieces[-1].write_bytes(content[start : start + largest])
    return pieces


def unpack(out: Path, name: str, folder: Path) -> bool:
    """Extract the pieces into `folder`. Return whether there were pieces."""
    pieces = sorted(out.glob(f"{name}.tar.*"))
    if not pieces:
        return False
    if [path.name for path in pieces] != [f"{name}.tar.{index:02d}" for index in range(len(pieces))]:
        raise ValueError(f"{out} lacks pieces of {name}.tar: it has {', '.join(path.name for path in pieces)}")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(b"".join(path.read_bytes() for path in pieces))) as archive:
            archive.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise ValueError(f"the pieces of {name}.tar in {out} are damaged: {error}") from None
    return True
