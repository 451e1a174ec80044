"""Functions in machine code where numba is installed, and as they stand where it is not.

numba keeps on disk what it compiled, and asks of a function whether its own file changed since. A function is made of
others, of other files too; so `part` of one is never kept, and a kernel that is kept closes over the `stamp` of all
files that it is made of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

numba: Any
try:
    import numba
except ImportError:
    numba = None

Function = TypeVar("Function", bound=Callable[..., Any])
HAS_COMPILER: Final = numba is not None
# Fused multiply-adds and zeros without a sign, and no other licence: missing values are NaN.
OPTIONS: Final[dict[str, Any]] = {"nogil": True, "fastmath": {"contract", "nsz"}, "error_model": "numpy"}


def part(function: Function) -> Function:
    """A function that kernels are made of."""
    return function if numba is None else numba.njit(forceinline=True, **OPTIONS)(function)


def kernel(function: Function) -> Function:
    """A function that Python calls; kept on disk, where there is a place for it."""
    if numba is None:
        return function
    try:
        return numba.njit(cache=True, **OPTIONS)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder that numba may write to: every process compiles for itself
        return numba.njit(**OPTIONS)(function)  # type: ignore[no-any-return]


def stamp(*modules: ModuleType) -> str:
    """A digest of the sources of these modules."""
    return hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in modules)).hexdigest()
