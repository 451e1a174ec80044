"""Run in Python what is compiled into kernels, because compiling a function for one test takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba.core.dispatcher import Dispatcher


def callable_from_python(function: Callable[..., Any], made: dict[int, Any] | None = None) -> Callable[..., Any]:
    """Return a compiled function, and all that it calls by a global name, as functions of Python."""
    made = {} if made is None else made
    if id(function) not in made:
        source: Any = function.py_func if isinstance(function, Dispatcher) else function
        names = dict(source.__globals__)
        made[id(function)] = FunctionType(source.__code__, names, source.__name__, source.__defaults__)
        for name in source.__code__.co_names:
            if isinstance(names.get(name), Dispatcher):
                names[name] = callable_from_python(names[name], made)
    return made[id(function)]  # type: ignore[no-any-return]
