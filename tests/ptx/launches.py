"""Launches of Triton's kernels, taken from its interpreter and played by the emulator from the PTX of a real compiler.

The repository's own launchers make them, with the launch table's entry of an architecture. A process compiles, for the
interpreter's process cannot; which Triton it has is chosen here too.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from rfa.model import product_triton
from rfa.model.attention import triton_backward, triton_distant, triton_forward, triton_rotation
from rfa.model.attention.launch import Launch, PassName, launch
from rfa.model.kernel_launches import KernelCall, call_of, described
from tests.ptx.compiler import Reply, Request
from tests.ptx.emulator import machine

ROOT = Path(__file__).resolve().parents[2]
# Where `make test-all` puts the oldest Triton that pyproject.toml allows, beside the one that is installed.
OLDEST = Path(sys.prefix) / "triton-3.6.0"
# The kernels of a scan of slots, one launch each.
SCAN = ("scan_kernel", "weights_kernel", "values_kernel")


class RefusedError(RuntimeError):
    """A kernel that the compiler does not take, and why."""


class Compiler:
    """A process with one version of Triton; it is started when it is first asked."""

    def __init__(self, triton: Path | None = None) -> None:
        """Args: triton: a folder that Triton is installed in, in place of the environment's."""
        self.triton = triton
        self._process: subprocess.Popen[bytes] | None = None
        self._existing: dict[bytes, Reply] = {}

    def __call__(self, request: Request) -> Reply:
        """PTX of a kernel.

        Raises:
            RefusedError: there is none.
        """
        key = pickle.dumps(request)
        if key not in self._existing:
            self._existing[key] = self._asked(key)
        reply = self._existing[key]
        if reply.complaint:
            raise RefusedError(f"{request.name} for sm_{request.architecture}: {reply.complaint}")
        return reply

    def _asked(self, request: bytes) -> Reply:
        if self._process is None:
            # Without the lines of the source, PTX changes only when the kernel does.
            environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
            environment |= {"TRITON_DISABLE_LINE_INFO": "1"}
            if self.triton:
                environment |= {"PYTHONPATH": str(self.triton)}
            command = [sys.executable, "-c", "from tests.ptx.compiler import serve; serve()"]
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(request)
        self._process.stdin.flush()
        reply = pickle.load(self._process.stdout)
        assert isinstance(reply, Reply)
        return reply

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


def requested(kernel: Any, architecture: int, grid: Any, *args: Any, **kwargs: Any) -> tuple[Request, KernelCall]:
    """The variant of a kernel that Triton would compile for a launch, and the launch."""
    call = call_of(JITFunction(kernel.fn, **kernel.kwargs), grid, args, kwargs)
    seen = described(call, architecture)
    return Request(
        kernel.fn.__module__, call.name, architecture, dict(seen.signature), dict(seen.constexprs),
        dict(seen.attributes), dict(call.options),
    ), call  # fmt: skip


@dataclass
class Emulator:
    """Launches as they come: what they compiled to, and how they are played.

    played: how often each kernel was.
    """

    compiler: Compiler
    architecture: int
    play: machine.Play = machine.IN_TURN
    played: Counter[str] = field(default_factory=Counter)

    def launch(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        """In place of `InterpretedFunction.run`."""
        request, call = requested(kernel, self.architecture, grid, *args, **kwargs)
        reply = self.compiler(request)
        arguments = [call.values[name] for name, kind in request.signature.items() if kind != "constexpr"]
        machine.run(machine.load(reply.ptx), call.grid, arguments, shared_bytes=reply.shared_bytes, play=self.play)
        self.played[kernel.fn.__name__] += 1


@contextmanager
def emulated(emulator: Emulator) -> Iterator[None]:
    """Within it the kernels run on the emulator, as they would be compiled for a GPU of its architecture."""
    capability = divmod(emulator.architecture, 10)

    def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
        emulator.launch(kernel, *args, **kwargs)

    def entry(pass_name: PassName, _: object, width: int, dtype: torch.dtype) -> Launch:
        return launch(pass_name, capability, width, dtype)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(InterpretedFunction, "run", run))
        for module in (triton_backward, triton_distant, triton_forward, triton_rotation, product_triton):
            stack.enter_context(mock.patch.object(module, "is_interpreted", return_value=False))
        for module in (triton_backward, triton_distant):
            stack.enter_context(mock.patch.object(module, "launch", entry))
        yield
