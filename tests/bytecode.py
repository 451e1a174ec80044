"""The environment of processes that start many Python processes."""

from __future__ import annotations

import os
from pathlib import Path


def with_bytecode(folder: Path) -> dict[str, str]:
    """This environment. If it forbids bytecode beside the sources, that goes to a folder.

    Each worker of an engine would otherwise compile pandas and pyarrow again, which takes 10 s of CPU.
    """
    found = dict(os.environ)
    if found.pop("PYTHONDONTWRITEBYTECODE", ""):
        found["PYTHONPYCACHEPREFIX"] = str(folder)
    return found
