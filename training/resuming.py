"""Resumable runs with atomic checkpoints.

The directory of a run contains `request.json`, which records what was requested, and `progress.json`. The same request,
or a request for more steps, continues the run; other requests are rejected. `checkpoint.sha256` contains the digests of
the checkpoint files in the format of `sha256sum`. Files that do not match are rejected.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open

REQUEST_FILE = "request.json"
PROGRESS_FILE = "progress.json"
OPTIMISER_FILE = "optimiser.safetensors"
DIGESTS_FILE = "checkpoint.sha256"
# The names are not imported from `rfa.model.checkpoint`, because fitting uses this module without torch.
CHECKPOINT = ("config.json", "model.safetensors", OPTIMISER_FILE, PROGRESS_FILE, REQUEST_FILE)
# Name of the directory of a complete checkpoint while its files are moved. That of an unfinished one also has a suffix.
WHOLE = ".checkpoint"
# Message for a finished run.
LEFT = "{} is finished; specify a larger --steps to continue it"


@contextmanager
def atomic_checkpoint(directory: Path) -> Iterator[Path]:
    """Create a temporary directory for the files of a checkpoint.

    When the context ends, these files and their digests replace those in `directory`. The checkpoint is complete once
    the temporary directory has been renamed. If the process ends before all files are moved, `has_checkpoint` moves the
    remaining files.

    Raises:
        FloatingPointError: If a tensor is not finite. `directory` is unchanged.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=f"{WHOLE}-") as folder:
        files = Path(folder, "files")
        files.mkdir()
        yield files
        _check_finite(files, directory)
        (files / DIGESTS_FILE).write_text("".join(f"{_digest(path)}\n" for path in sorted(files.iterdir())))
        _put_in_place(directory)
        files.rename(directory / WHOLE)
    _put_in_place(directory)


def copy_checkpoint(out: Path, to: Path) -> None:
    """Copy the checkpoint of a run to another directory, atomically."""
    with atomic_checkpoint(to) as folder:
        for name in CHECKPOINT:
            shutil.copyfile(out / name, folder / name)


def _put_in_place(directory: Path) -> None:
    whole = directory / WHOLE
    if whole.is_dir():
        for path in whole.iterdir():
            path.replace(directory / path.name)
        whole.rmdir()


def _digest(path: Path) -> str:
    """Return the line that `sha256sum` prints for a file."""
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"


def _check_finite(files: Path, directory: Path) -> None:
    for path in files.glob("*.safetensors"):
        with safe_open(path, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is not a mapping
                if not tensors.get_tensor(name).isfinite().all():
                    raise FloatingPointError(
                        f"the training diverged: {name} of {path.name} is not finite; {remaining_state(directory)}"
                    )


def remaining_state(out: Path) -> str:
    """Return a clause for the error message of a failed run, which states whether a checkpoint remains."""
    return "the last checkpoint is intact" if (out / PROGRESS_FILE).is_file() else "nothing was saved"


def has_checkpoint(out: Path) -> bool:
    """Return whether a run directory contains a checkpoint. An interrupted save is completed first.

    Raises:
        ValueError: If a file is missing or does not match its digest.
    """
    _put_in_place(out)
    for unfinished in out.glob(f"{WHOLE}-*"):
        shutil.rmtree(unfinished)
    digests = out / DIGESTS_FILE
    if not digests.is_file():
        if left := [name for name in CHECKPOINT if (out / name).exists()]:
            raise ValueError(
                f"{out} has {left[0]} but no {DIGESTS_FILE}, which is required to continue a run; choose another --out"
            )
        return False
    saved = digests.read_text(errors="replace").splitlines()
    for path in (out / name for name in CHECKPOINT):
        if not path.is_file() or _digest(path) not in saved:
            found = "does not match" if path.exists() else "is missing, but is listed in"
            raise ValueError(
                f"{path} {found} {DIGESTS_FILE}; restore the files of one checkpoint, or choose another --out"
            )
    return True


def differing_settings(requested: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the names of settings in which two requests differ."""
    return sorted(name for name in {*requested, *found} if requested.get(name) != found.get(name))


def check_request(out: Path, requested: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Compare a request with the earlier request in its directory. Return True if it has more steps or minutes, and
    False if the requests are the same.

    Args:
        out: Directory of the run, for the error message.
        requested: Settings of the new request.
        found: Settings of the earlier request.

    Raises:
        ValueError: If the request differs in another setting, or has fewer steps or minutes.
    """
    names = differing_settings(requested, found)
    if not names:
        return False
    if names in (["steps"], ["minutes"]) and (requested[names[0]] or 0) > (found[names[0]] or math.inf):
        return True
    raise ValueError(
        f"{out} contains a run with another config (it differs in {', '.join(names)}); choose another --out"
    )
