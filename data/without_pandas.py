"""pyarrow imports pandas when it is first used, which takes half a second; reading files does not need it."""

from __future__ import annotations

from importlib.abc import MetaPathFinder


class WithoutPandas(MetaPathFinder):
    """Refuses to import pandas. Put it first in `sys.meta_path`, in a process that needs no data frames."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
