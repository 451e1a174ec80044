"""Call a compiled kernel from another kernel by its address.

When numba compiles a kernel, it also compiles all functions that the kernel calls, once for each calling kernel. A
kernel that is called by its address is compiled only once.

    @callee(*modules)
    def add(content, k): x, y = members(content) …      takes a view of a tuple, and numbers

    entry = add.entry((x, y), 0)                        in Python: compiled for arguments of these types
    call(entry, (packed((x, y)), k))                    in a kernel that `entry` was passed to
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from llvmlite import ir
from numba import typeof, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model, typeof_impl, unbox

from rfa.runtime.compiling import kernel_jit
from rfa.runtime.views import AddressType, ViewType, member_type, type_digest


class EntryType(AddressType):
    """The numba type of an `Entry`, determined by the types of its arguments and of its result."""

    def __init__(self, arguments: tuple[types.Type, ...], result: types.Type) -> None:
        self.arguments, self.result = arguments, result
        super().__init__(name=f"Entry({type_digest((*arguments, result))})")


class Entry:
    """The address of a compiled kernel, which stays loaded until the process exits."""

    __slots__ = ("address", "kind")

    def __init__(self, kernel: Any, arguments: tuple[types.Type, ...]) -> None:
        kernel.compile(arguments)
        compiled = kernel.overloads[arguments]
        self.address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        self.kind = EntryType(arguments, compiled.signature.return_type)


def entry_of(kernel: Any, *arguments: Any) -> Entry:
    """Return the entry of a `kernel_jit` kernel for arguments of the given types. Tuples are passed as views."""
    return Entry(kernel, tuple(member_type(typeof(argument)) for argument in arguments))


class Callee:
    """A kernel that other kernels call by its address, for one set of types. See `callee`."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._entry: Entry | None = None

    def entry(self, content: tuple[Any, ...], *arguments: Any) -> Entry:
        """Return the entry of the kernel. The first call compiles it for arguments of the given types."""
        if self._entry is None:
            self._entry = Entry(self.kernel, (ViewType(typeof(content)), *map(typeof, arguments)))
        return self._entry


def callee(*modules: ModuleType) -> Callable[[Callable[..., Any]], Callee]:
    """Return a decorator that compiles and caches a kernel that other kernels call by its address. For `modules`, see
    `kernel_jit`."""
    return lambda function: Callee(kernel_jit(*modules)(function))


def pass_as_address(python_type: type, numba_type: type[types.Type]) -> None:
    """Make compiled code accept objects of a Python type. They must have the attributes `kind` (the numba type) and
    `address`."""

    @typeof_impl.register(python_type)
    def type_of(value: Any, _: Any) -> Any:
        return value.kind

    @register_model(numba_type)
    class AddressModel(models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: types.Type) -> None:
            super().__init__(manager, kind, ir.IntType(64))

    @unbox(numba_type)
    def unboxed(_, value, c):
        address = c.pyapi.object_getattr_string(value, "address")
        native = c.unbox(types.int64, address)
        c.pyapi.decref(address)
        return native


pass_as_address(Entry, EntryType)


@intrinsic
def call(typing, entry, arguments):
    """Call a kernel with a tuple of arguments."""
    if len(entry.arguments) != len(arguments) or not all(map(typing.can_convert, arguments, entry.arguments)):
        raise TypingError(f"{entry} takes {entry.arguments}, not {arguments}")

    def generate(context, builder, _, values):
        passed = [
            context.cast(builder, value, given, taken)
            for value, given, taken in zip(
                cgutils.unpack_tuple(builder, values[1]), arguments, entry.arguments, strict=True
            )
        ]
        convention = context.call_conv
        form = convention.get_function_type(entry.result, entry.arguments)
        address = builder.inttoptr(values[0], form.as_pointer())
        status, result = convention.call_function(builder, address, entry.result, entry.arguments, passed)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return result

    return entry.result(entry, arguments), generate
