"""Pass many arrays to compiled code as one argument.

    handle = Handle(content)                 content: nested tuples of arrays, numbers, handles and entries
    opened(handle)                           in a kernel: a view of the content

numba unboxes every array of an argument on each call, which takes a quarter of a microsecond per array. A model and its
streams have about a hundred arrays. A handle unboxes them once. It is the address of a list of addresses and shapes. A
handle inside another handle is opened separately, so content that rarely changes need not be listed again with content
that often changes.

The handle keeps its arrays alive. Their numbers may change, but the arrays must not be moved.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def,attr-defined"

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numba import typeof, types
from numba.extending import intrinsic

from rfa.runtime.kernel_calls import Entry, pass_as_address
from rfa.runtime.views import WORD, AddressType, ViewType, type_digest


class HandleType(AddressType):
    """The numba type of a handle, determined by the type of its content."""

    def __init__(self, content: types.Type) -> None:
        self.content = content
        super().__init__(name=f"Handle({type_digest(content)})")


class Handle:
    """A handle with which compiled code can read nested tuples of arrays. See the module docstring.

    Args:
        content: Nested tuples of contiguous arrays, numbers, handles and kernel entries.
        keeps: Whether to keep the content alive. Otherwise, the caller must keep it alive.

    Raises:
        TypeError: If an array is not contiguous, or a part is not an array, number, handle, entry or tuple of these.
    """

    __slots__ = ("_content", "_numbers", "address", "kind")

    def __init__(self, content: tuple[Any, ...], *, keeps: bool = True) -> None:
        numbers: list[int] = []
        form = _list(content, numbers)
        self._content, self._numbers = content if keeps else (), np.array(numbers, np.int64)
        self.address = self._numbers.ctypes.data
        if form not in _KINDS:
            _KINDS[form] = HandleType(typeof(content))
        self.kind = _KINDS[form]


# Types by the structure of the content, because `typeof` takes five times as long as the rest of `Handle`.
_KINDS: dict[Any, HandleType] = {}


def _list(content: Any, numbers: list[int]) -> Any:
    """Append the numbers and addresses of a content to `numbers`, in the order in which `opened` reads them. Return the
    structure of the content. Contents with equal structures have the same type."""
    if isinstance(content, tuple):
        return (type(content), *[_list(part, numbers) for part in content])
    if isinstance(content, np.ndarray):
        if not content.flags.c_contiguous:
            raise TypeError(f"an array of shape {content.shape} is not contiguous")
        numbers += [content.ctypes.data, *content.shape]
        return content.dtype, content.ndim, content.flags.writeable
    if isinstance(content, Handle | Entry):
        numbers.append(content.address)
        return content.kind
    if isinstance(content, bool | int | np.integer):
        numbers.append(int(content))
    elif isinstance(content, float):
        numbers.append(struct.unpack("<q", struct.pack("<d", content))[0])
    else:
        raise TypeError(f"{type(content).__name__} is not an array, number, handle, entry or tuple of these")
    return type(content)


pass_as_address(Handle, HandleType)


@intrinsic
def opened(_, handle):
    """Return a view of the content of a handle."""

    def generate(_context, builder, _signature, arguments):
        return builder.inttoptr(arguments[0], WORD.as_pointer())

    return ViewType(handle.content)(handle), generate
