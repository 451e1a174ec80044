"""Which files a process opened, by what strace wrote of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STRACE = (
    "strace", "--follow-forks", "--seccomp-bpf", "--quiet=all", "--string-limit=4096",
    "--trace=open,openat,openat2,creat,execve,connect,unlink,unlinkat,rename,renameat,mkdir,link,symlink",
)  # fmt: skip
CALL = re.compile(r'^(?:\d+ +)?(?P<call>\w+)\((?:AT_FDCWD, |\d+(?:<[^>]*>)?, )?"(?P<path>(?:[^"\\]|\\.)*)"')
# What the interpreter and its libraries read by themselves, late: modules, and how the machine is made.
OWN = (
    "/proc/self/", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/", "/sys/fs/cgroup/", "/dev/urandom",
    "/dev/null",
)  # fmt: skip
MODULES = (".py", ".pyc", ".so", ".pth", ".dist-info", ".zip")


def outside(trace: Path, bundle: Path) -> list[str]:
    """Calls after the first look at the bundle that name a file which is neither the bundle's nor the interpreter's,
    whether or not they succeeded; and each that runs, connects or changes anything."""
    return sorted(set(_outside(trace, bundle)))


def _outside(trace: Path, bundle: Path) -> Iterator[str]:
    is_looking = False
    for line in trace.read_text(errors="replace").splitlines():
        found = CALL.match(line)
        if found is None:
            if "connect(" in line and is_looking:
                yield "connect"
            continue
        path = found["path"]
        is_looking |= path.startswith(str(bundle))
        if not is_looking or path.startswith(f"{bundle}/") or path == str(bundle):
            if is_looking and found["call"] not in ("open", "openat", "openat2"):
                yield f"{found['call']} {path}"
            continue
        if found["call"] not in ("open", "openat", "openat2") or not _is_own(path):
            yield f"{found['call']} {path}"


def _is_own(path: str) -> bool:
    """A relative name is nobody's: in a session it is looked for in the working directory."""
    if path.startswith(OWN):
        return True
    homes = (str(ROOT), sys.prefix, sys.base_prefix, "/usr/lib", "/lib")
    folder = Path(path)
    return path.startswith(homes) and (path.endswith(MODULES) or ".so." in path or not folder.suffix)
