"""Launches of the GPU's kernels: taken before Triton compiles them, and what its compiler would be told of them.

`kernel[grid](*arguments)` has Triton compile the kernel for the GPU that is here, by `ptxas` and a C compiler, and
launch it. Whoever takes launches is asked first: a recorder of them, a GPU that runs kernels compiled before, an
emulator where there is no GPU.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.language import constexpr
from triton.runtime.jit import KernelInterface, create_function_from_signature

from rfa.model.placement import as_on_gpu

THREADS_OF_A_WARP = 32


@dataclass(frozen=True)
class KernelCall:
    """One launch.

    function: Triton's; grid: CTAs; values: by parameter, in their order, defaults included; options: num_warps and
    num_stages, as far as the launcher gives them.
    """

    function: Any
    grid: tuple[int, int, int]
    values: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of the kernel."""
        return str(self.function.fn.__name__)


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel as one launch uses it, for Triton's compiler.

    call: the launch; signature: parameter → type ("*bf16", "i32", "constexpr"); constexprs and attributes by position
    in the signature; options: num_warps, num_stages and the rest.
    """

    call: KernelCall
    signature: Mapping[str, str]
    constexprs: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], Any]
    options: Mapping[str, Any]

    @property
    def function(self) -> Any:
        """Triton's."""
        return self.call.function


# Whether it took the launch; else it goes to Triton.
Taker = Callable[[KernelCall], bool]


def take_launches(taker: Taker) -> Callable[[], None]:
    """From now on every launch of this process is offered to `taker` before Triton; the result ends that."""
    before = KernelInterface.__getitem__

    def launcher(function: Any, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            if taker(call_of(function, grid, args, kwargs)):
                return None
            return before(function, grid)(*args, **kwargs)

        return launch

    def end() -> None:
        KernelInterface.__getitem__ = before  # type: ignore[method-assign]

    KernelInterface.__getitem__ = launcher  # type: ignore[method-assign]
    return end


@contextmanager
def launches_taken(taker: Taker) -> Iterator[None]:
    """The same, within it."""
    end = take_launches(taker)
    try:
        yield
    finally:
        end()


def call_of(function: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelCall:
    """The launch `function[grid](*args, **kwargs)`."""
    signature = _signature(function.fn)
    named = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    values = dict(bound.arguments)
    sizes = (*(grid(values) if callable(grid) else grid), 1, 1)
    options = {name: value for name, value in kwargs.items() if name not in named}
    return KernelCall(function, (sizes[0], sizes[1], sizes[2]), values, options)


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def described(call: KernelCall, architecture: int) -> KernelLaunch:
    """What Triton compiles for a launch: all that it would see of these arguments.

    Args:
        architecture: compute capability as one number: 80, 90.
    """
    function, backend = call.function, _backend(architecture)
    bind = create_function_from_signature(function.signature, function.params, backend)
    bound, specialization, options = bind(**call.values, **call.options)
    # What JITFunction.run does before it compiles.
    options, signature, constexprs, attributes = function._pack_args(
        backend, {**call.values, **call.options}, bound, specialization, options
    )
    return KernelLaunch(call, signature, constexprs, attributes, dict(options.__dict__))


def _backend(architecture: int) -> Any:
    return make_backend(GPUTarget("cuda", architecture, THREADS_OF_A_WARP))


@contextmanager
def recorded_launches(architecture: int) -> Iterator[list[KernelLaunch]]:
    """Within it, tensors count as those of a GPU of an architecture, and kernels are not run: what they would be
    compiled from goes into the list. Nothing of this works under TRITON_INTERPRET, where kernels are never compiled.
    """
    launches: list[KernelLaunch] = []

    def take(call: KernelCall) -> bool:
        launches.append(described(call, architecture))
        return True

    with as_on_gpu(divmod(architecture, 10)), launches_taken(take):
        yield launches


@functools.cache
def source_hash(function: Any) -> str:
    """Of the source of a kernel and of all functions of ours that it is made of, and their constants (sha256)."""
    parts: dict[str, str] = {}
    _collect(function, parts)
    return hashlib.sha256("\0".join(f"{name}\0{parts[name]}" for name in sorted(parts)).encode()).hexdigest()


def _collect(function: Any, parts: dict[str, str]) -> None:
    module = function.fn.__module__
    name = f"{module}.{function.fn.__name__}"
    if name in parts:
        return
    parts[name] = source = textwrap.dedent(inspect.getsource(function.fn))
    for node in ast.walk(ast.parse(source)):
        found = function.fn.__globals__.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(found, constexpr):
            parts[f"{module}.{node.id}"] = repr(found.value)  # type: ignore[attr-defined]
        elif isinstance(found, KernelInterface) and not found.fn.__module__.startswith("triton."):  # type: ignore[attr-defined]
            _collect(found, parts)
