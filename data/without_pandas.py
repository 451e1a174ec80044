"""Prevent pyarrow from importing pandas on first use, which takes half a second and is not needed for reading
files."""

from __future__ import annotations

from importlib.abc import MetaPathFinder


class WithoutPandas(MetaPathFinder):
    """Import hook that prevents the import of pandas. Insert it at the start of `sys.meta_path`, in a process that does
    not need data frames."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
