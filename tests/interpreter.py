"""Triton's interpreter without its repeated work, which takes most of the time of kernel tests; and with worse
functions.

The interpreter patches `triton.language` before a kernel and before every call of a function in it, by inspecting every
member of three modules. It builds a table of all types to look up one, and describes the shape of every number in
nested objects.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

Direction = Literal["up", "down", "either"]
# Fibonacci hashing: its highest bits depend on every bit of the key.
HASH = np.uint32(2654435769)


def quicken() -> None:
    """Speed up the interpreter of this process without changing its results."""
    interpreter._patch_lang = _patched_once(interpreter._patch_lang)
    interpreter._get_np_dtype = _looked_up_once(interpreter._get_np_dtype)
    tl.block_type.__init__ = _checked_once(tl.block_type.__init__)
    tl.tensor.__init__ = _with_existing_shape


def _patched_once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Patch once per kernel: functions of the same modules within it are already patched."""

    @functools.cache
    def modules(function: Any) -> list[Any]:
        found = filter(inspect.ismodule, function.__globals__.values())
        return [module for module in found if module in (tl, tl.core)]

    def once(function: Any) -> Any:
        existing = modules(function)
        if existing and not any(tl.core.is_builtin(module.load) for module in existing):
            return interpreter._LangPatchScope()  # nothing to restore
        return patch(function)

    return once


def _looked_up_once(look_up: Callable[[Any], np.dtype[Any]]) -> Callable[[Any], np.dtype[Any]]:
    existing: dict[str, np.dtype[Any]] = {}

    def dtype_of(kind: Any) -> np.dtype[Any]:
        name = (kind.element_ty if isinstance(kind, tl.block_type) else kind).name
        if name not in existing:
            existing[name] = look_up(kind)
        return existing[name]

    return dtype_of


def _checked_once(check: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """Return the constructor of a type of blocks with cached checks of element and shape."""
    existing: dict[tuple[str, tuple[int, ...]], tuple[tuple[int, ...], int, str]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = element_ty.name, tuple(size.value if isinstance(size, tl.constexpr) else size for size in shape)
        if key in existing:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = existing[key]
        else:
            check(self, element_ty, shape)
            existing[key] = self.shape, self.numel, self.name

    return init


def _with_existing_shape(self: Any, handle: Any, kind: Any) -> None:
    """Return the constructor of a tensor of the language."""
    self.handle, self.type, self.dtype = handle, kind, kind.scalar
    self.numel, self.shape = _described(kind.shape if kind.is_block() else ())


@functools.cache
def _described(shape: tuple[int, ...]) -> tuple[Any, Any]:
    return tl.constexpr(math.prod(shape)), tl.tuple([tl.constexpr(size) for size in shape])


def put_off(direction: Direction, replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Emulate a processor with worse functions: one ulp off in float32, and sums of products in the opposite order.

    Args:
        direction: Direction of the ulp. "either" is a hash of the argument, so that a function is deterministic.
        replace: Called with a class, the name of its attribute, and the new attribute.
    """
    functions = (np.exp, np.exp2, np.log, np.log2, np.sin, np.cos)
    of_one, of_products = interpreter.InterpreterBuilder.unary_op, interpreter.InterpreterBuilder.create_dot

    def unary_op(self: Any, argument: Any, function: Any) -> Any:
        result = of_one(self, argument, function)
        if function in functions and result.data.dtype == np.float32:
            result.data = _one_ulp_off(result.data, argument.data, direction)
        return result

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        backwards = (interpreter.TensorHandle(np.flip(x.data, axis), x.dtype.scalar) for x, axis in ((a, -1), (b, -2)))
        return of_products(self, *backwards, *others)

    replace(interpreter.InterpreterBuilder, "unary_op", unary_op)
    replace(interpreter.InterpreterBuilder, "create_dot", create_dot)


def _one_ulp_off(values: np.ndarray, arguments: np.ndarray, direction: Direction) -> np.ndarray:
    """Return the float32 next to each of `values`; 0 and infinity stay."""
    is_up = np.full(values.shape, direction == "up")
    if direction == "either":
        is_up = arguments.view(np.uint32) * HASH >> np.uint32(31) == 1
    moved = np.nextafter(values, np.where(is_up, np.float32(np.inf), np.float32(-np.inf)))
    return np.where(np.isfinite(values) & (values != 0), moved, values)
