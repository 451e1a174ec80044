"""Intercept the launches of GPU kernels before Triton compiles them, and describe them for Triton's compiler.

Interception is used to record launches, to run precompiled kernels, or to emulate a GPU.
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

from rfa.model.placement import simulated_gpu

THREADS_OF_A_WARP = 32


@dataclass(frozen=True)
class KernelCall:
    """A launch of a kernel.

    Args:
        function: Triton function.
        grid: Number of programs per dimension.
        values: Arguments by parameter name, in order, including defaults.
        options: num_warps and num_stages, if the launch sets them.
    """

    function: Any
    grid: tuple[int, int, int]
    values: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return str(self.function.fn.__name__)


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel with the signature of one launch, for Triton's compiler.

    Args:
        call: The launch.
        signature: Type of each parameter ("*bf16", "i32", "constexpr").
        constexprs, attributes: Values of the constants, and properties such as divisibility by 16, by position in the
            signature.
        options: num_warps, num_stages and other options.
    """

    call: KernelCall
    signature: Mapping[str, str]
    constexprs: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], Any]
    options: Mapping[str, Any]

    @property
    def function(self) -> Any:
        """Triton function of the launch."""
        return self.call.function


# A function that returns True if it has handled the launch. Otherwise, Triton handles it.
Taker = Callable[[KernelCall], bool]


def intercept_launches(taker: Taker) -> Callable[[], None]:
    """Call `taker` before every kernel launch of this process. If `taker` returns True, the kernel is not launched.
    Return a function that ends the interception."""
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
def intercepted_launches(taker: Taker) -> Iterator[None]:
    """Call `taker` before every kernel launch inside a context. See `intercept_launches`."""
    end = intercept_launches(taker)
    try:
        yield
    finally:
        end()


def call_of(function: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelCall:
    """Return the description of the launch `function[grid](*args, **kwargs)`."""
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
    """Return a launch with the signature and the options with which Triton would compile it.

    Args:
        call: The launch.
        architecture: Compute capability as one number, such as 80 or 90.
    """
    function, backend = call.function, _backend(architecture)
    bind = create_function_from_signature(function.signature, function.params, backend)
    bound, specialization, options = bind(**call.values, **call.options)
    # These are the steps of JITFunction.run before it compiles.
    options, signature, constexprs, attributes = function._pack_args(
        backend, {**call.values, **call.options}, bound, specialization, options
    )
    return KernelLaunch(call, signature, constexprs, attributes, dict(options.__dict__))


def _backend(architecture: int) -> Any:
    return make_backend(GPUTarget("cuda", architecture, THREADS_OF_A_WARP))


@contextmanager
def recorded_launches(architecture: int) -> Iterator[list[KernelLaunch]]:
    """Record launches instead of running them. Tensors are treated as if they were on a GPU of this architecture.

    This does not work with TRITON_INTERPRET, because the interpreter does not compile kernels.
    """
    launches: list[KernelLaunch] = []

    def take(call: KernelCall) -> bool:
        launches.append(described(call, architecture))
        return True

    with simulated_gpu(divmod(architecture, 10)), intercepted_launches(take):
        yield launches


@functools.cache
def source_hash(function: Any) -> str:
    """Return the SHA-256 of the source of a kernel, of the functions that it uses, and of their constants."""
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
