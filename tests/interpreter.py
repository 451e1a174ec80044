"""Triton's interpreter without what it repeats: half the time of every test of a kernel.

It puts its own functions in the place of those of `triton.language` before a kernel, and once more before every call of
a function within it, by looking at every member of three modules; and it makes a table of all types to look up one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def quicken() -> None:
    """Change the interpreter of this process; what it computes stays the same."""
    interpreter._patch_lang = _patched_once(interpreter._patch_lang)
    interpreter._get_np_dtype = _looked_up_once(interpreter._get_np_dtype)


def _patched_once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A kernel's own patch holds until it ends: a function within it, of the same modules, finds its work done."""

    @functools.cache
    def modules(function: Any) -> list[Any]:
        found = filter(inspect.ismodule, function.__globals__.values())
        return [module for module in found if module in (tl, tl.core)]

    def once(function: Any) -> Any:
        known = modules(function)
        if known and not any(tl.core.is_builtin(module.load) for module in known):
            return interpreter._LangPatchScope()  # nothing to restore
        return patch(function)

    return once


def _looked_up_once(look_up: Callable[[Any], np.dtype[Any]]) -> Callable[[Any], np.dtype[Any]]:
    known: dict[str, np.dtype[Any]] = {}

    def dtype_of(kind: Any) -> np.dtype[Any]:
        name = (kind.element_ty if isinstance(kind, tl.block_type) else kind).name
        if name not in known:
            known[name] = look_up(kind)
        return known[name]

    return dtype_of
