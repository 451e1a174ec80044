"""Pass a tuple of arrays to compiled code as one address. Each element is loaded where it is used.

numba passes a tuple by value. A tuple of a hundred arrays has seven hundred words, which LLVM copies wherever the tuple
is passed. These copies would account for half of the compilation time of a kernel. A view is one address, and its
attributes are read where they are used:

    view = packed(content)                   in a kernel: the content in words, on the caller's stack
    view.attribute, view[0]                  a number, an array, or the view of an inner tuple
    one, other = members(view)

A number takes one word. An array takes the address of its first element and its shape. The parts of a tuple follow each
other. Arrays are contiguous. The words must not change while there is a view of them, but the numbers in the arrays may
change.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def,attr-defined"

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_global, signature
from numba.extending import (
    infer,
    infer_getattr,
    intrinsic,
    lower_builtin,
    lower_getattr_generic,
    models,
    register_model,
)
from numba.np.arrayobj import populate_array

WORD = ir.IntType(64)


class ViewType(types.Type):
    """The numba type of a view. It is determined by the type of its content, which is a tuple."""

    def __init__(self, content: types.BaseTuple) -> None:
        self.content = content
        super().__init__(name=f"View({type_digest(content)})")


class AddressType(types.Type):
    """A type whose values are addresses."""


def type_digest(kind: object) -> str:
    """Return a short name for a type. The names of large tuples have thousands of characters."""
    return hashlib.sha256(repr(kind).encode()).hexdigest()[:16]


@register_model(ViewType)
class _ViewModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: ViewType) -> None:
        super().__init__(manager, kind, WORD.as_pointer())


def content_type(kind: types.Type) -> types.Type:
    """Return a type in which each type of a view is replaced by the type of its content."""
    if isinstance(kind, ViewType):
        return kind.content
    if isinstance(kind, types.BaseTuple):
        return types.BaseTuple.from_types(tuple(map(content_type, kind.types)), getattr(kind, "instance_class", None))
    return types.unliteral(kind)


def member_type(kind: types.Type) -> types.Type:
    """Return the type of a part of a view."""
    return ViewType(kind) if isinstance(kind, types.BaseTuple) else kind


def _word_count(*kinds: types.Type) -> int:
    count = 0
    for kind in kinds:
        if isinstance(kind, types.BaseTuple):
            count += _word_count(*kind.types)
        else:
            count += 1 + kind.ndim if isinstance(kind, types.Array) else 1
    return count


def read_member(context: Any, builder: Any, content: types.BaseTuple, words: ir.Value, index: int) -> ir.Value:
    """Generate code that reads a part of a view."""
    kind, offset = content.types[index], _word_count(*content.types[:index])
    if isinstance(kind, types.BaseTuple):
        return builder.gep(words, [WORD(offset)])
    numbers = [_load(builder, words, offset + k) for k in range(_word_count(kind))]
    if isinstance(kind, types.Array):
        return _array(context, builder, kind, *numbers)
    if isinstance(kind, types.Float):
        return builder.bitcast(numbers[0], ir.DoubleType())
    if isinstance(kind, types.Boolean):
        return builder.icmp_unsigned("!=", numbers[0], WORD(0))
    return numbers[0]


def _load(builder: Any, words: ir.Value, offset: int) -> ir.Value:
    number = builder.load(builder.gep(words, [WORD(offset)]))
    # Mark the number as unchanged by writes to arrays, so that LLVM reads it once.
    number.set_metadata("invariant.load", builder.module.add_metadata([]))
    return number


def _array(context: Any, builder: Any, kind: types.Array, address: ir.Value, *shape: ir.Value) -> ir.Value:
    """Return a contiguous array without an owner."""
    array = context.make_array(kind)(context, builder)
    item = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    data = builder.inttoptr(address, context.get_data_type(kind.dtype).as_pointer())
    stride, strides = context.get_constant(types.intp, item), list[ir.Value]()
    for length in reversed(shape):
        strides.insert(0, stride)
        stride = builder.mul(stride, length)
    populate_array(
        array, data, cgutils.pack_array(builder, shape), cgutils.pack_array(builder, strides),
        context.get_constant(types.intp, item), meminfo=None,
    )  # fmt: skip
    return array._getvalue()


@infer_getattr
class _ViewAttribute(AttributeTemplate):  # type: ignore[misc]
    key = ViewType

    def generic_resolve(self, view, name):  # type: ignore[override]
        fields = getattr(view.content, "fields", ())
        return member_type(view.content.types[fields.index(name)]) if name in fields else None


@lower_getattr_generic(ViewType)
def _read_attribute(context, builder, view, words, name):
    return read_member(context, builder, view.content, words, view.content.fields.index(name))


@infer
class _ViewItem(AbstractTemplate):  # type: ignore[misc]
    key = "static_getitem"

    def generic(self, arguments, _):
        view, index = arguments
        if isinstance(view, ViewType) and isinstance(index, int):
            return signature(member_type(view.content.types[index]), view, types.intp)
        return None


@lower_builtin("static_getitem", ViewType, types.Any)
def _read_item(context, builder, signature, arguments):
    return read_member(context, builder, signature.args[0].content, *arguments)


@infer_global(operator.getitem)
class _ViewNumber(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments, _):
        view, index = arguments
        kind = view.content.dtype if isinstance(view, ViewType) and isinstance(view.content, types.UniTuple) else None
        is_number = isinstance(kind, types.Float | types.Integer | types.Boolean)
        return signature(kind, view, types.intp) if is_number and isinstance(index, types.Integer) else None


@lower_builtin(operator.getitem, ViewType, types.Integer)
def _read_number(context, builder, signature, arguments):
    words, index = arguments
    return read_member(context, builder, signature.args[0].content, builder.gep(words, [index]), 0)


@intrinsic
def members(_, view):
    """Return the parts of a view as a tuple."""
    content = view.content
    result = types.Tuple(tuple(map(member_type, content.types)))

    def generate(context, builder, _signature, arguments):
        parts = [read_member(context, builder, content, arguments[0], index) for index in range(len(content.types))]
        return context.make_tuple(builder, result, parts)

    return result(view), generate


@intrinsic
def packed(_, content):
    """Return a view of a tuple for `kernel_calls.call`. Its words are on the stack until the calling kernel returns."""
    kind = content_type(content)
    if not isinstance(kind, types.BaseTuple):
        raise TypingError(f"{content} is not a tuple")

    def generate(_context, builder, _signature, arguments):
        words = cgutils.alloca_once(builder, WORD, size=WORD(_word_count(kind)))
        for offset, number in enumerate(_words(builder, content, arguments[0])):
            builder.store(number, builder.gep(words, [WORD(offset)]))
        return words

    return ViewType(kind)(content), generate


def _words(builder: Any, kind: types.Type, value: ir.Value) -> Iterator[ir.Value]:
    """Yield the words of a value."""
    if isinstance(kind, ViewType):
        yield from (_load(builder, value, offset) for offset in range(_word_count(kind.content)))
    elif isinstance(kind, types.BaseTuple):
        for index, part in enumerate(kind.types):
            yield from _words(builder, part, builder.extract_value(value, index))
    elif isinstance(kind, types.Array) and kind.layout == "C":
        # numba's structure: owner, parent, number of elements, their size, address, shape, strides.
        yield builder.ptrtoint(builder.extract_value(value, 4), WORD)
        yield from (builder.extract_value(value, [5, axis]) for axis in range(kind.ndim))
    elif kind == types.float64:
        yield builder.bitcast(value, WORD)
    elif isinstance(kind, types.Boolean):
        yield builder.zext(value, WORD)
    elif kind in (types.int64, types.uint64) or isinstance(kind, types.IntegerLiteral | AddressType):
        yield value
    else:
        raise TypingError(f"{kind} is not a contiguous array, 64-bit number, address or tuple of these")
