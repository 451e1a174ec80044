"""Packages that take seconds to import and are used by a few tests. Every worker collects every test."""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """A module that is imported when a test first uses it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks every name of a test file for some of these
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
