"""What the machine, or the container around this process, lets it use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")


def available_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Cores this process may use: in a container fewer than the machine has, by affinity or by a quota of time.

    Args:
        proc: the kernel's folder on this process.
        cgroups: where control groups are mounted, of version 2, of version 1, or of both.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quotas = [_quota(folder) for folder in _group_folders(proc, cgroups, "cpu")]
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas if quota is not None)]))


def _quota(folder: Path) -> float | None:
    """Cores' worth of time that a control group has; None where it has no quota, or there is no such group here."""
    try:
        if (both := folder / "cpu.max").is_file():  # such as `400000 100000`, or `max 100000`
            time, period = map(int, both.read_text().split())
        else:
            time, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return time / period if time > 0 and period > 0 else None  # version 1 writes -1 for none


def memory_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Memory that this process and those beside it may use: the machine's, or less where a control group says so.

    Args:
        proc: the kernel's folder on this process.
        cgroups: where control groups are mounted, of version 2, of version 1, or of both.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_memory_limit(folder) for folder in _group_folders(proc, cgroups, "memory")]
    return min([machine, *(limit for limit in limits if limit is not None)])


@dataclass(frozen=True)
class ProcessMemory:
    """Memory of this process that is in RAM, bytes.

    Args:
        own: what no other process has.
        mapped: pages of files, such as libraries, which processes of the same program have together.
    """

    own: int
    mapped: int


def process_memory(proc: Path = PROC) -> ProcessMemory:
    """What this process holds now; nothing where the system does not tell."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        _, resident, mapped, *_ = map(int, (proc / "statm").read_text().split())
    except OSError:  # not Linux
        return ProcessMemory(0, 0)
    return ProcessMemory((resident - mapped) * page, mapped * page)


def _group_folders(proc: Path, cgroups: Path, controller: str) -> Iterator[Path]:
    """Folders of the groups of this process that a controller has, and of all groups around them, as far as they can
    be seen from here."""
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
        # In a container the path may be the host's, of which only the root is mounted: that is the container's group.
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            yield folder
            if folder == root:
                break


def _memory_limit(folder: Path) -> int | None:
    """Bytes that a control group may hold; None where it has no limit, or there is no such group here."""
    file = folder / "memory.max"
    try:
        return int((file if file.is_file() else folder / "memory.limit_in_bytes").read_text())
    except (OSError, ValueError):  # none, or "max"
        return None
