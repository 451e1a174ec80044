"""Recording of the commit and hardware of a measurement, and writing of result files."""

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
    """Return the commit of this code. It is marked if the working tree has changes, and None outside a checkout."""
    if not (HOME / ".git").exists():  # installed, perhaps somewhere inside a repository of somebody else
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware() -> dict[str, str | int]:
    """Return the CPU, the number of usable cores, the operating system and the date of a measurement."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def origin(command: str) -> dict[str, Any]:
    """Return the origin of a measurement: the commit, the hardware with the date, and the command that was run."""
    return {"commit": git_commit(), "hardware": hardware(), "command": command}


def write_result(path: Path, document: Mapping[str, Any]) -> None:
    """Write a dictionary of figures as JSON, atomically.

    Raises:
        ValueError: If a figure is not finite, which JSON cannot represent, or the path is a directory or device.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} exists and cannot be overwritten, because it is not a regular file")
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
