"""Counts the kernels, copies and memsets that a CUDA graph would record, on a CPU."""

from __future__ import annotations

from typing import Any, Self
from unittest import mock

from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

# They allocate memory without writing it.
ALLOCATIONS = (
    "aten.empty.memory_format", "aten.new_empty.default", "aten.empty_strided.default", "aten.empty_like.default",
)  # fmt: skip


class Nodes(TorchDispatchMode):
    """Records torch operators, except views and allocations, and launches of Triton kernels by name.

    An operator counts as one. This holds on a GPU for matrix products, concatenations and copies, except for products
    whose sum the library splits and completes in a second kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []
        self.launches: list[str] = []
        self._is_within_kernel = False

    def __len__(self) -> int:
        return len(self.operators) + len(self.launches)

    def __enter__(self) -> Self:
        run = InterpretedFunction.run

        def counted(kernel: Any, *args: Any, **kwargs: Any) -> None:
            self.launches.append(kernel.fn.__name__)
            self._is_within_kernel = True  # the interpreter calls torch, too
            run(kernel, *args, **kwargs)
            self._is_within_kernel = False

        self._patch = mock.patch.object(InterpretedFunction, "run", counted)
        self._patch.start()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._patch.stop()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call and record it."""
        if not (self._is_within_kernel or function.is_view or str(function) in ALLOCATIONS):
            self.operators.append(str(function))
        return function(*args, **(kwargs or {}))
