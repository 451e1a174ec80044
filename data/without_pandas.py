"""Prevent pyarrow from importing pandas on first use, which takes half a second and is not needed for reading
files."""

from __future__ import annotations

from importlib.abc import MetaPathFinder


class WithoutPandas(MetaPathFinder):
    """Prevents the import of pandas. Put it first in `sys.meta_path`, in a process that does not need data frames."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
