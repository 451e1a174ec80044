"""Read corpora with Hugging Face `datasets`: directories that `save_to_disk` wrote, and directories of files that only
`datasets` can read.

A saved dataset is read without that package. Otherwise, `datasets` converts CSV, JSON and compressed files to Arrow
files in its cache. `documents.py` reads the Arrow files.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

# Names that datasets use for each split.
SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "validation", "dev"), "test": ("test",)}
CONVERTED_SUFFIXES = (".csv", ".tsv", ".json", ".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
STATE_FILE = "state.json"


def saved_files(directory: Path) -> list[Path] | None:
    """Return the data files of a split that `save_to_disk` wrote, or None if it did not write this directory.

    The directory may also contain cached results of `map`, which are not data.

    Raises:
        ValueError: If the description of the dataset is invalid. The message names the file.
    """
    state = directory / STATE_FILE
    if not state.is_file():
        return None
    try:
        return [directory / one["filename"] for one in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{state} is not the description of a dataset saved by save_to_disk") from None


def is_convertible(data: Path) -> bool:
    """Return whether a directory contains files that only `datasets` can read."""
    return data.is_dir() and any(_convertible_files(data))


def converted_files(data: Path) -> dict[str, list[Path]]:
    """Convert a directory with `datasets.load_dataset`, and return the Arrow files of each split.

    Raises:
        ValueError: If `datasets` is not installed, or cannot read a file. The message names the file and, if `datasets`
            reports it, the line.
    """
    if importlib.util.find_spec("datasets") is None:
        names = ", ".join(sorted({file.name for file in _convertible_files(data)})[:3])
        raise ValueError(f"{data}: to read {names}, install the package datasets: pip install datasets")
    import datasets

    try:
        loaded = datasets.load_dataset(str(data))
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        raise _named(error, data) from None
    files = {name: [Path(one["filename"]) for one in split.cache_files] for name, split in loaded.items()}
    return {
        split: found for split, names in SPLIT_NAMES.items() if (found := next(filter(None, map(files.get, names)), []))
    }


def _convertible_files(data: Path) -> list[Path]:
    found = (path for pattern in ("*", "*/*") for path in data.glob(pattern))
    return sorted(path for path in found if path.suffix in CONVERTED_SUFFIXES and path.is_file())


def _named(error: Exception, data: Path) -> ValueError:
    """Return an error that names the file that `datasets` cannot read, because the error of `datasets` names only the
    line."""
    import datasets

    for file in _convertible_files(data):
        try:
            datasets.load_dataset(str(data), data_files=[str(file.relative_to(data))])
        except (datasets.exceptions.DatasetsError, ValueError, OSError) as found:
            return ValueError(f"{file}: {_reason(found)}")
    return ValueError(f"{data}: {_reason(error)}")


def _reason(error: Any) -> str:
    return str(error.__cause__ or error).strip().partition("\n")[0]
