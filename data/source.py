"""Reading a local file, standard input, or a URL."""

from __future__ import annotations

import sys
from pathlib import Path

from rfa.data.file_formats import MAX_BYTES, read_limited


def is_url(source: str | Path) -> bool:
    """Whether fsspec reads the source: s3://, https:// and so on."""
    return isinstance(source, str) and "://" in source


def display_name(source: str | Path) -> str:
    """The name of a file for messages and titles."""
    text = str(source)
    if text == "-":
        return "standard input"
    return text.split("?", maxsplit=1)[0].rstrip("/").rpartition("/")[2] if is_url(source) else Path(source).name


def read_source(source: str | Path) -> bytes:
    """The content of a file, at most 2 GiB.

    Raises:
        ValueError: missing, too large or unreadable, and what to do.
    """
    if str(source) == "-":
        content = read_limited(sys.stdin.buffer)
    elif is_url(source):
        content = _fetch(str(source))
    else:
        content = _read(Path(source))
    if len(content) >= MAX_BYTES:
        raise ValueError(f"{display_name(source)} has 2 GiB or more, the limit: split it")
    return content


def _read(path: Path) -> bytes:
    if not path.exists():
        raise ValueError(f"file {str(path)!r} does not exist")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a file")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return file.read(size) if 0 < size < MAX_BYTES else read_limited(file)
    except OSError as error:
        raise ValueError(f"file {str(path)!r} cannot be read: {error.strerror}") from None


def _fetch(url: str) -> bytes:
    try:
        import fsspec
    except ModuleNotFoundError:
        raise ValueError(f"reading {url} needs fsspec: pip install 'rfa-server[remote]', or give a file") from None
    try:
        with fsspec.open(url, "rb") as file:
            return read_limited(file)
    except FileNotFoundError:
        raise ValueError(f"{url} does not exist, or cannot be reached") from None
    except Exception as error:  # every store has its own errors, a missing package included
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{url} cannot be read: {reason}") from None
