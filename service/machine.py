"""What the machine, or the container around this process, lets it use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")


def available_cores(quota: Path = CGROUPS / "cpu.max") -> int:
    """Cores this process may use: in a container fewer than the machine has, by affinity or by a quota of time.

    Args:
        quota: the kernel's file on the quota of this control group, such as `400000 100000` or `max 100000`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        time, period = quota.read_text().split()
        return max(1, min(cores, math.ceil(int(time) / int(period))))
    except (OSError, ValueError):  # no such file, or no quota
        return cores


def memory_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Memory that this process and those beside it may use: the machine's, or less where a control group says so.

    Args:
        proc: the kernel's folder on this process.
        cgroups: where control groups are mounted, of version 2, of version 1, or of both.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_group_limits(proc, cgroups)])


@dataclass(frozen=True)
class Held:
    """Memory of this process that is in RAM, bytes.

    Args:
        own: what no other process has.
        mapped: pages of files, such as libraries, which processes of the same program have together.
    """

    own: int
    mapped: int


def held_memory(proc: Path = PROC) -> Held:
    """What this process holds now; nothing where the system does not tell."""
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        _, resident, mapped, *_ = map(int, (proc / "statm").read_text().split())
    except OSError:  # not Linux
        return Held(0, 0)
    return Held((resident - mapped) * page, mapped * page)


def _group_limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """The limits of the groups of this process and of all groups around them, as far as they can be seen from here."""
    try:
        groups = (proc / "cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers == "":
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's, of which only the root is mounted: that is the container's group.
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            yield from _limit(folder / name)
            if folder == root:
                break


def _limit(file: Path) -> Iterator[int]:
    try:
        yield int(file.read_text())
    except (OSError, ValueError):  # no such group here, or "max"
        return
