"""Commit and hardware of a measurement, and the files of results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent.parent
RESULTS = HOME / "results"


def git_commit() -> str | None:
    """The commit of this code, with a mark if the working tree has changes; None outside a checkout."""
    if not (HOME / ".git").exists():  # installed, perhaps somewhere inside a repository of somebody else
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware() -> dict[str, str | int]:
    """CPU, usable cores, system and date of a measurement."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def origin(command: str) -> dict[str, Any]:
    """Where figures come from: the commit, the hardware with the date, and the command that measures them."""
    return {"commit": git_commit(), "hardware": hardware(), "command": command}


def write_result(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document of figures as JSON, atomically.

    Raises:
        ValueError: a figure is not finite, for which JSON has no word, or the path is that of a folder or device.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file that can be overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    partial.replace(path)


def _cpu_name() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
