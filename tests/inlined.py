"""Call from Python what kernels alone call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from rfa.runtime.compiling import OPTIONS


def callable_from_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled function that calls one of `inline_jit`."""

    @numba.njit(**OPTIONS)  # type: ignore[untyped-decorator]
    def call(*args: Any) -> Any:
        return function(*args)

    return call  # type: ignore[no-any-return]
