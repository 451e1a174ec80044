"""Print the requirements in pyproject.toml, one per line: the core, and the extras named in the first argument.

An image installs them in a separate layer, so that a change of code does not install them again.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(project: dict, extras: list[str]) -> list[str]:
    """Return the core requirements, followed by those of each extra.

    Raises:
        KeyError: If there is no such extra.
    """
    return [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]


if __name__ == "__main__":
    declared = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    extras = [extra for extra in sys.argv[1].split(",") if extra]
    sys.stdout.write("\n".join(requirements(declared, extras)) + "\n")
