"""What one lane cannot show: products of matrices, against NumPy; approximations err as they may.

The instructions of a lane are those of the kernels, whose results other tests hold against eager code.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from tests.ptx.emulator import machine
from tests.ptx.emulator.operands import UnknownPtxError
from tests.ptx.written import kernel, run

pytestmark = pytest.mark.skipif(machine.missing() is not None, reason=str(machine.missing()))

COUNT = 512


def memory(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.view(np.uint8))


# Matrices.

HALVES = {"bf16": torch.bfloat16, "f16": torch.float16}


def tile_pair(kind: str, rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(HALVES[kind])


def numbers(first: int, n: int) -> str:
    return f"{{{', '.join(f'%r{first + i}' for i in range(n))}}}"


@pytest.mark.parametrize("kind", HALVES)
def test_products_of_a_warp(kind: str) -> None:
    """A through `ldmatrix`, B through its transposing form: D = A B + A B."""
    a, b, out = tile_pair(kind, 16, 16, 1), tile_pair(kind, 16, 8, 2), torch.zeros(16, 8)
    product = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
    body = f"""
    // A: 16 rows of 32 bytes, a row a lane, at 0; B: 16 rows of 16 bytes at 512.
    setp.lt.u32 %p1, %r0, 16;
    mad.wide.u32 %rd10, %r0, 32, %rd0;  mad.wide.u32 %rd11, %r0, 16, %rd1;
    @%p1 ld.global.v4.b32 {numbers(40, 4)}, [%rd10];
    @%p1 ld.global.v4.b32 {numbers(44, 4)}, [%rd10+16];
    @%p1 ld.global.v4.b32 {numbers(48, 4)}, [%rd11];
    mul.lo.s32 %r1, %r0, 32;  mul.lo.s32 %r2, %r0, 16;
    @%p1 st.shared.v4.b32 [%r1], {numbers(40, 4)};
    @%p1 st.shared.v4.b32 [%r1+16], {numbers(44, 4)};
    @%p1 st.shared.v4.b32 [%r2+512], {numbers(48, 4)};
    bar.sync 0;
    and.b32 %r3, %r0, 15;  shr.u32 %r4, %r0, 4;  mul.lo.s32 %r5, %r3, 32;  mad.lo.s32 %r5, %r4, 16, %r5;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {numbers(60, 4)}, [%r5];
    mul.lo.s32 %r6, %r3, 16;
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {numbers(64, 2)}, [%r6+512];
    mov.b32 %r70, 0;  mov.b32 %r71, 0;  mov.b32 %r72, 0;  mov.b32 %r73, 0;
    {product} {numbers(70, 4)}, {numbers(60, 4)}, {numbers(64, 2)}, {numbers(70, 4)};
    {product} {numbers(70, 4)}, {numbers(60, 4)}, {numbers(64, 2)}, {numbers(70, 4)};
    // Lane 4 g + t holds row g, columns 2 t and 2 t + 1, and the same of row g + 8.
    mad.wide.u32 %rd12, %r0, 8, %rd2;
    st.global.v2.b32 [%rd12], {numbers(70, 2)};
    st.global.v2.b32 [%rd12+256], {numbers(72, 2)};"""
    run(kernel(body, parameters=3), a, b, out, shared_bytes=768)
    expected = 2 * (a.double() @ b.double())
    torch.testing.assert_close(out.double(), expected, rtol=2**-22, atol=2**-22)


def swizzled(x: torch.Tensor) -> torch.Tensor:
    """Rows of 128 bytes as wgmma wants them: of eight rows, chunk c of row r stands at c xor r."""
    chunks = x.view(-1, 8, 8, 8)
    place = torch.arange(8)[:, None] ^ torch.arange(8)
    return torch.stack([chunks[:, r, place[r]] for r in range(8)], 1).reshape(x.shape)


def descriptor(start: int, *, leading: int = 16, stride: int = 1024) -> int:
    """Of a matrix whose rows of 128 bytes are swizzled; in units of 16 bytes."""
    return start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 62


def group_kernel(kind: str, n: int, *, is_left_in_registers: bool, is_right_turned: bool, between: str = "") -> str:
    """D [64, n] = A [64, 64] B, four steps of 16; A and B lie swizzled in memory, B [n, 64] or, turned, [64, 64]."""
    product = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind}"
    sums = numbers(100, n // 2)
    steps = []
    for step in range(4):
        right = descriptor(8192) + (step * 2048 if is_right_turned else step * 32) // 16
        if is_left_in_registers:
            # The same rows by ldmatrix: chunk c of row r at c xor r mod 8.
            left = numbers(60 + 4 * step, 4)
            flags = f"{int(step > 0)}, 1, 1, {int(is_right_turned)}"
        else:
            left, flags = f"%rd{20 + step}", f"{int(step > 0)}, 1, 1, 0, {int(is_right_turned)}"
            steps.append(f"mov.b64 %rd{20 + step}, {descriptor(0) + step * 2};")
        steps.append(f"mov.b64 %rd{30 + step}, {right};\n{product} {sums}, {left}, %rd{30 + step}, {flags};")
    load_left = "".join(
        f"xor.b32 %r7, %r6, {2 * step};  mul.lo.s32 %r7, %r7, 16;  add.s32 %r7, %r7, %r5;\n"
        f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {numbers(60 + 4 * step, 4)}, [%r7];\n"
        for step in range(4)
    )
    rows = "\n".join(
        f"ld.global.v4.b32 {numbers(40, 4)}, [%rd10+{2048 * i}];  st.shared.v4.b32 [%r1+{2048 * i}], {numbers(40, 4)};"
        for i in range(8)
    )
    stores = "\n".join(
        f"st.global.v2.b32 [%rd12+{32 * j + 8 * half * 4 * n}], {numbers(100 + 4 * j + 2 * half, 2)};"
        for j in range(n // 8)
        for half in range(2)
    )
    return kernel(f"""
    // A at 0 and B at 8192, 16 KiB of 16 bytes a thread and turn.
    mad.wide.u32 %rd10, %r0, 16, %rd0;  mul.lo.s32 %r1, %r0, 16;
    {rows}
    fence.proxy.async.shared::cta;
    bar.sync 0;
    // Lane l of a warp points to row l mod 16 of its own 16 and to chunk l / 16, xor the row mod 8.
    and.b32 %r2, %r0, 31;  shr.u32 %r3, %r0, 5;  and.b32 %r4, %r2, 15;
    mad.lo.s32 %r5, %r3, 16, %r4;  mul.lo.s32 %r5, %r5, 128;
    shr.u32 %r6, %r2, 4;  and.b32 %r8, %r4, 7;  xor.b32 %r6, %r6, %r8;
    {load_left}
    wgmma.fence.sync.aligned;
    {"".join(steps)}
    wgmma.commit_group.sync.aligned;
    {between}
    wgmma.wait_group.sync.aligned 0;
    // Lane 4 g + t of warp w: row 16 w + g, columns 8 j + 2 t.
    shr.u32 %r9, %r2, 2;  mad.lo.s32 %r9, %r3, 16, %r9;  and.b32 %r10, %r2, 3;
    mul.lo.s32 %r9, %r9, {4 * n};  mad.lo.s32 %r9, %r10, 8, %r9;
    cvt.u64.u32 %rd11, %r9;  add.s64 %rd12, %rd1, %rd11;
    {stores}""", parameters=2, warps=4)  # fmt: skip


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize(("n", "is_right_turned"), [(8, False), (32, False), (64, False), (64, True)])
@pytest.mark.parametrize("is_left_in_registers", [False, True])
def test_products_of_a_warp_group(kind: str, n: int, is_left_in_registers: bool, is_right_turned: bool) -> None:
    a, b = tile_pair(kind, 64, 64, 1), tile_pair(kind, 64, 64, 2)
    out = torch.zeros(64, n)
    ptx = group_kernel(kind, n, is_left_in_registers=is_left_in_registers, is_right_turned=is_right_turned)
    run(ptx, torch.cat([swizzled(a), swizzled(b)]), out, shared_bytes=16384)
    right = b if is_right_turned else b[:n].mT
    torch.testing.assert_close(out.double(), a.double() @ right.double(), rtol=2**-20, atol=2**-20)


# The table itself.


def test_what_is_unknown_is_named() -> None:
    with pytest.raises(UnknownPtxError, match=r"tanh\.approx\.f32.*%clock"):
        machine.load(kernel("tanh.approx.f32 %r1, %r1;\nmov.u32 %r1, %clock;"))


@pytest.mark.parametrize(
    "name", ["ex2.approx.ftz.f32", "lg2.approx.ftz.f32", "rcp.approx.ftz.f32", "rsqrt.approx.ftz.f32"]
)
def test_approximations_may_be_an_ulp_off(name: str) -> None:
    body = f"""
    mov.u32 %r1, %ctaid.x;  mad.lo.s32 %r1, %r1, 32, %r0;
    mad.wide.u32 %rd10, %r1, 4, %rd0;  mad.wide.u32 %rd11, %r1, 4, %rd1;
    ld.global.b32 %r2, [%rd11];
    {name} %r3, %r2;
    st.global.b32 [%rd10], %r3;"""
    ptx, a = kernel(body, parameters=2), np.linspace(0.3, 0.8, COUNT, dtype=np.float32)

    def applied(play: machine.Play = machine.IN_TURN) -> np.ndarray:
        out = np.zeros(COUNT, np.float32)
        run(ptx, memory(out), memory(a), grid=COUNT // 32, play=play)
        return out

    exact, off = applied(), {way: applied(machine.Play(functions=way)) for way in get_args(machine.Functions)}
    functions = {"ex2": np.exp2, "lg2": np.log2, "rcp": np.reciprocal, "rsqrt": lambda x: 1 / np.sqrt(x)}
    np.testing.assert_allclose(exact, functions[name.partition(".")[0]](a.astype(np.float64)), rtol=2**-23)
    np.testing.assert_array_equal(off["exact"], exact)
    np.testing.assert_array_equal(off["up"], np.nextafter(exact, np.float32(np.inf)))
    np.testing.assert_array_equal(off["down"], np.nextafter(exact, np.float32(-np.inf)))
    assert ((off["either"] == off["up"]) ^ (off["either"] == off["down"])).all()
    assert 0.3 < (off["either"] == off["up"]).mean() < 0.7
