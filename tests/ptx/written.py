"""Small kernels in PTX, written by hand for the tests of the emulator."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.ptx.emulator import machine

HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n.extern .shared .align 16 .b8 global_smem[];\n"
# Of these each kernel has enough for a test.
REGISTERS = ".reg .pred %p<16>;\n.reg .b16 %rs<32>;\n.reg .b32 %r<1024>;\n.reg .b64 %rd<64>;\n"


def kernel(body: str, *, parameters: int = 0, warps: int = 1, declarations: str = "", constants: str = "") -> str:
    """A kernel of 64-bit parameters p0, p1, …, of which %rd0, %rd1, … hold the values; %r0 is the thread."""
    names = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    loads = "".join(f"ld.param.b64 %rd{i}, [p{i}];\n" for i in range(parameters))
    entry = f".visible .entry written({names})\n.reqntid {32 * warps}\n"
    return f"{HEADER}{constants}{entry}{{\n{declarations}{REGISTERS}{loads}mov.u32 %r0, %tid.x;\n{body}\nret;\n}}\n"


def run(ptx: str, *tensors: Tensor, grid: int = 1, shared_bytes: int = 0, **options: object) -> None:
    machine.run(machine.load(ptx), (grid,), tensors, shared_bytes=shared_bytes, **options)  # type: ignore[arg-type]


def words(n: int) -> Tensor:
    """0, 1, 2, … as int32, memory that a kernel may write."""
    return torch.arange(n, dtype=torch.int32)
