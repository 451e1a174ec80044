"""Report the cores and the memory that the machine or container provides to this process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")


def available_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the number of cores that this process may use, according to its affinity and the quotas of its control
    groups.

    Args:
        proc: Directory of this process in procfs.
        cgroups: Mount point of control groups, in version 1, 2 or both.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quotas = [_quota(folder) for folder in _group_folders(proc, cgroups, "cpu")]
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas if quota is not None)]))


def _quota(folder: Path) -> float | None:
    """Return the quota of a control group in cores, or None if the group does not exist or has no quota."""
    try:
        if (both := folder / "cpu.max").is_file():  # such as `400000 100000`, or `max 100000`
            time, period = map(int, both.read_text().split())
        else:
            time, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return time / period if time > 0 and period > 0 else None  # version 1 uses -1 for no quota


def memory_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the memory that this process may use in bytes: that of the machine, or the limit of a control group if it
    is lower.

    Args:
        proc: Directory of this process in procfs.
        cgroups: Mount point of control groups, in version 1, 2 or both.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_memory_limit(folder) for folder in _group_folders(proc, cgroups, "memory")]
    return min([machine, *(limit for limit in limits if limit is not None)])


@dataclass(frozen=True)
class ProcessMemory:
    """Resident memory of this process, in bytes.

    Args:
        own: Memory that is not shared.
        mapped: Memory of mapped files such as libraries, which processes of the same program share.
    """

    own: int
    mapped: int


def process_memory(proc: Path = PROC) -> ProcessMemory:
    """Return the resident memory of this process, or zeros if the system does not report it."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        _, resident, mapped, *_ = map(int, (proc / "statm").read_text().split())
    except OSError:  # not Linux
        return ProcessMemory(0, 0)
    return ProcessMemory((resident - mapped) * page, mapped * page)


def _group_folders(proc: Path, cgroups: Path, controller: str) -> Iterator[Path]:
    """Yield the directories of the control groups of this process with a controller, and of their parents."""
    try:
        groups = (proc / "cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers == "":
            root = cgroups
        elif controller in controllers.split(","):
            root = cgroups / controller
        else:
            continue
        # In a container, the path may be that on the host, although the group of the container is mounted as the root.
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            yield folder
            if folder == root:
                break


def _memory_limit(folder: Path) -> int | None:
    """Return the memory limit of a control group in bytes, or None if the group does not exist or has no limit."""
    file = folder / "memory.max"
    try:
        return int((file if file.is_file() else folder / "memory.limit_in_bytes").read_text())
    except (OSError, ValueError):  # missing, or "max"
        return None
