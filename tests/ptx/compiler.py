"""A process that compiles kernels to PTX, not under TRITON_INTERPRET.

Requests and replies are pickles on its standard streams, one after the other, until the input ends.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """A kernel as one launch uses it.

    module, name: where the kernel is defined; signature: parameter → type ("*bf16", "i32", "constexpr"); constexprs and
    attributes by position in it; options: warps and stages.
    """

    module: str
    name: str
    architecture: int
    signature: dict[str, str]
    constexprs: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """PTX and the bytes of its dynamic shared memory, or what the compiler complained of."""

    ptx: str = ""
    shared_bytes: int = 0
    complaint: str = ""


def compiled(request: Request) -> Reply:
    """The kernel in PTX."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=getattr(importlib.import_module(request.module), request.name),
        signature=request.signature,
        constexprs=request.constexprs,
        attrs=request.attributes,
    )
    kernel = triton.compile(source, target=GPUTarget("cuda", request.architecture, 32), options=request.options)
    return Reply(kernel.asm["ptx"], int(kernel.metadata.shared))


def _answer(request: Request) -> Reply:
    try:
        return compiled(request)
    except Exception as error:  # whatever it is: the test that asked should show it
        return Reply(complaint=f"{type(error).__name__}: {error}")


def serve() -> None:
    replies, sys.stdout = sys.stdout.buffer, sys.stderr  # what a library prints is no reply
    while sys.stdin.buffer.peek(1):
        pickle.dump(_answer(pickle.load(sys.stdin.buffer)), replies)
        replies.flush()
