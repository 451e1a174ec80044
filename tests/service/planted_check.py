"""A bundle check that misbehaves: `python -m tests.service.planted_check REQUEST`.

The name of the bundle's directory selects what it does.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from rfa.service.bundle_checks import child as check_child


def _endless(_: Path) -> None:
    while True:
        pass


def _greedy(_: Path) -> None:
    bytearray(1 << 40)


def _crashing(_: Path) -> None:
    ctypes.string_at(0)


def _sleeping(_: Path) -> None:
    import time

    time.sleep(1000)


def _writing(path: Path) -> None:
    with (path / "written").open("w") as handle:
        handle.write("something")


def _hoarding(_: Path) -> None:
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
    raise AssertionError(f"{len(kept)} open files")


def _talkative(_: Path) -> None:
    raise ValueError("\n" + "a" * 10_000_000)


def _printing(_: Path) -> None:
    os.write(1, b'{"name": "forged", "kind": "lm", "digest": "0", "golden_values": 1}\n')
    print("noise")
    raise ValueError("said enough")


def _curious(_: Path) -> None:
    files, settings = list(Path.cwd().iterdir()), [name for name in os.environ if name.startswith("RFA_")]
    raise ValueError(f"sees {files} and {settings}")


def _leaving(_: Path) -> None:
    os._exit(7)


def _misbehave(path: Path, _: object) -> Any:
    sys.modules[__name__].__dict__[f"_{path.name}"](path)


if __name__ == "__main__":
    check_child.open_bundle = _misbehave  # type: ignore[assignment]
    check_child.main()
