"""Read a local file, standard input, or a URL."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Final

from rfa.data.file_formats import MAX_BYTES, TABLES, may_be_table, read_limited

MOST_FILES: Final = 10_000


def is_url(source: str | Path) -> bool:
    """Return whether the source is a URL that fsspec reads, such as s3:// or https://."""
    return isinstance(source, str) and "://" in source


def display_name(source: str | Path) -> str:
    """Return the name of a file for messages and titles."""
    text = str(source)
    if text == "-":
        return "standard input"
    return text.split("?", maxsplit=1)[0].rstrip("/").rpartition("/")[2] if is_url(source) else Path(source).name


def display_names(sources: Sequence[str]) -> list[str]:
    """Return the file name of each source. Sources that share their file name with others are returned unchanged."""
    names = [display_name(source) for source in sources]
    return [name if names.count(name) == 1 else source for name, source in zip(names, sources, strict=True)]


def expand_sources(sources: Sequence[str]) -> list[str]:
    """Return the files in directories and the files that match patterns such as data/*.csv, sorted by name. Other
    sources are unchanged.

    Raises:
        ValueError: If a directory has no tables, a pattern matches no file, or there are too many files.
    """
    found: list[str] = []
    for source in sources:
        files = [source]
        if not is_url(source) and Path(source).is_dir():
            files = sorted(str(path) for path in Path(source).iterdir() if path.is_file() and may_be_table(path.name))
            if not files:
                endings = " or ".join(TABLES[:2])
                raise ValueError(f"directory {source!r} contains no files with a supported ending, such as {endings}")
        elif not is_url(source) and re.search(r"[*?\[]", source) and not Path(source).exists():
            # Path.glob does not accept absolute patterns.
            files = sorted(path for path in glob(source, recursive=True) if Path(path).is_file())  # noqa: PTH207
            if not files:
                raise ValueError(f"no file matches {source!r}")
        found += files
    if len(found) > MOST_FILES:
        raise ValueError(f"{len(found):,} files exceed the limit of {MOST_FILES:,}; select fewer")
    return found


def read_source(source: str | Path) -> bytes:
    """Return the content of a file of at most 2 GiB.

    Raises:
        ValueError: If the file is missing, too large or unreadable. The message says what to do.
    """
    if str(source) == "-":
        content = read_limited(sys.stdin.buffer)
    elif is_url(source):
        content = _fetch(str(source))
    else:
        content = _read(Path(source))
    if len(content) >= MAX_BYTES:
        raise ValueError(f"{display_name(source)} must be smaller than 2 GiB; split it")
    return content


def _read(path: Path) -> bytes:
    if not path.exists():
        raise ValueError(f"file {str(path)!r} does not exist")
    if path.is_dir():
        raise ValueError(f"{path} is a directory; specify one of its files, or use `rfa forecast {path}`")
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
        raise ValueError(
            f"reading {url} needs fsspec; install it with pip install 'rfa-server[remote]', or specify a file"
        ) from None
    try:
        with fsspec.open(url, "rb") as file:
            return read_limited(file)
    except FileNotFoundError:
        raise ValueError(f"{url} does not exist or cannot be reached") from None
    except Exception as error:  # every store has its own errors, including missing packages
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{url} cannot be read: {reason}") from None
