"""Where a file is: on this machine, on standard input, or behind a URL."""

from __future__ import annotations

import sys
from pathlib import Path

from rfa.data.content import MAX_BYTES, all_of


def is_url(source: str | Path) -> bool:
    """Whether fsspec reads it: s3://, https:// and so on."""
    return isinstance(source, str) and "://" in source


def name_of(source: str | Path) -> str:
    """What a file is called in messages and titles."""
    text = str(source)
    if text == "-":
        return "standard input"
    return text.split("?", maxsplit=1)[0].rstrip("/").rpartition("/")[2] if is_url(source) else Path(source).name


def read_source(source: str | Path) -> bytes:
    """The content of a file, at most 2 GiB.

    Raises:
        ValueError: it is not there, is too large, or cannot be had; what to do.
    """
    if str(source) == "-":
        content = all_of(sys.stdin.buffer)
    elif is_url(source):
        content = _fetched(str(source))
    else:
        content = _read(Path(source))
    if len(content) >= MAX_BYTES:
        raise ValueError(f"{name_of(source)} has 2 GiB or more: give a part of it")
    return content


def _read(path: Path) -> bytes:
    if not path.exists():
        raise ValueError(f"file {str(path)!r} does not exist")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a file")
    try:
        with path.open("rb") as file:
            return all_of(file)
    except OSError as error:
        raise ValueError(f"file {str(path)!r} cannot be read: {error.strerror}") from None


def _fetched(url: str) -> bytes:
    try:
        import fsspec
    except ModuleNotFoundError:
        raise ValueError(f"reading {url} needs fsspec: pip install 'rfa-server[remote]', or give a file") from None
    try:
        with fsspec.open(url, "rb") as file:
            return all_of(file)
    except FileNotFoundError:
        raise ValueError(f"{url} does not exist, or cannot be reached") from None
    except Exception as error:  # each store has its own, and so has the lack of its package
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{url} cannot be read: {told}") from None
