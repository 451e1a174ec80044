"""Every instruction of the emulator against what NumPy, or a loop over the definition, makes of the same numbers."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests.ptx.emulator import machine
from tests.ptx.emulator.operands import UnknownPtxError
from tests.ptx.written import kernel, run, words

pytestmark = pytest.mark.skipif(machine.missing() is not None, reason=str(machine.missing()))

KINDS = {
    "b16": np.uint16, "u32": np.uint32, "b32": np.uint32, "s32": np.int32, "u64": np.uint64, "b64": np.uint64,
    "s64": np.int64, "f16": np.float16, "f32": np.float32, "f64": np.float64, "u16": np.uint16,
    "s16": np.int16,
}  # fmt: skip


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards 0, as in C; nothing is promised of a quotient by 0."""
    return np.array(
        [
            int(x) // int(y) if (x < 0) == (y < 0) else -(-int(x) // int(y)) if y else 0
            for x, y in zip(a, b, strict=True)
        ],
        dtype=object,
    )


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    mask = 2 ** (8 * a.itemsize) - 1
    return np.array([x & mask for x in divide(a, b)], dtype=f"u{a.itemsize}").view(a.dtype)


COUNT = 512


def register(kind: str, index: int) -> str:
    return {2: "%rs", 4: "%r", 8: "%rd"}[np.dtype(KINDS[kind]).itemsize] + str(20 + index)


def of_elements(instruction: str, kinds: list[str]) -> str:
    """A kernel that loads a number of each kind but the first, does the instruction and stores a first."""
    body = ["mov.u32 %r1, %ctaid.x;", "mad.lo.s32 %r1, %r1, 32, %r0;"]
    for i, kind in enumerate(kinds):
        body.append(f"mad.wide.u32 %rd{10 + i}, %r1, {np.dtype(KINDS[kind]).itemsize}, %rd{i};")
    bits = [8 * np.dtype(KINDS[kind]).itemsize for kind in kinds]
    body += [f"ld.global.b{bits[i]} {register(kinds[i], i)}, [%rd{10 + i}];" for i in range(1, len(kinds))]
    store = register(kinds[0], 0)
    body += [instruction, f"st.global.b{bits[0]} [%rd10], {store};"] if bits[0] < 64 else [
        instruction, f"mov.b64 {{%r18, %r19}}, {store};", "st.global.v2.b32 [%rd10], {%r18, %r19};"
    ]  # fmt: skip
    return kernel("\n".join(body), parameters=len(kinds))


def memory(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.view(np.uint8))


def apply(name: str, kinds: list[str], *arguments: np.ndarray, **options: Any) -> np.ndarray:
    instruction = f"{name} {', '.join(register(kind, i) for i, kind in enumerate(kinds))};"
    out = np.zeros(COUNT, KINDS[kinds[0]])
    run(of_elements(instruction, kinds), memory(out), *map(memory, arguments), grid=COUNT // 32, **options)
    return out


def test_branches_part_and_meet() -> None:
    """Each lane goes round as often as its number says, past an early exit of every fourth."""
    body = """
    and.b32 %r1, %r0, 3;  setp.eq.b32 %p1, %r1, 3;
    mad.wide.u32 %rd10, %r0, 4, %rd0;
    @%p1 ret;
    mov.b32 %r2, 0;  mov.b32 %r3, 0;
$L_round:
    setp.ge.s32 %p2, %r2, %r0;
    @%p2 bra $L_end;
    add.s32 %r2, %r2, 1;  add.s32 %r3, %r3, %r2;
    bra.uni $L_round;
$L_end:
    st.global.b32 [%rd10], %r3;"""
    out = words(32).fill_(-1)
    run(kernel(body, parameters=1), out)
    lanes = np.arange(32)
    np.testing.assert_array_equal(out, np.where(lanes % 4 == 3, -1, lanes * (lanes + 1) // 2))


@pytest.mark.parametrize(("space", "n"), [*itertools.product(("global", "shared"), (1, 2, 4)), ("local", 1)])
def test_memory(space: str, n: int) -> None:
    """Vectors written at one address of a lane and read, from the other end, by another instruction."""
    vector = f".v{n}" if n > 1 else ""
    first, second = (f"{{{', '.join(f'%r{start + i}' for i in range(n))}}}" for start in (10, 20))
    base = {
        "global": f"mad.wide.u32 %rd10, %r0, {4 * n}, %rd1;",
        "shared": f"mul.lo.s32 %r2, %r0, {4 * n};",
        "local": "mov.b64 %rd10, depot;",
    }
    place = {"global": "[%rd10]", "shared": "[%r2]", "local": "[%rd10]"}[space]
    body = f"""
    mad.wide.u32 %rd9, %r0, {4 * n}, %rd0;
    {base[space]}
    ld.volatile.global{vector}.b32 {first}, [%rd9];
    st.{space}{vector}.b32 {place}, {first};
    ld.{space}{vector}.b32 {second}, {place};
    st.global{vector}.b32 [%rd9+{128 * n}], {second};"""
    out, other = words(64 * n), words(32 * n)
    run(kernel(body, parameters=2, declarations=".local .align 4 .b8 depot[16];\n"), out, other, shared_bytes=128 * n)
    np.testing.assert_array_equal(out[32 * n :], np.arange(32 * n))


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


@pytest.mark.parametrize("n", [1, 2, 4])
def test_tiles_are_stored_as_they_are_read(n: int) -> None:
    """`stmatrix` undoes `ldmatrix`, each way round; through the wrong one the tiles come out transposed."""
    a = tile_pair("f16", 8 * n, 8, 1)
    for store, load in ((".trans", ".trans"), ("", ""), (".trans", "")):
        body = f"""
        setp.lt.u32 %p1, %r0, {8 * n};
        mad.wide.u32 %rd10, %r0, 16, %rd0;  mul.lo.s32 %r1, %r0, 16;
        @%p1 ld.global.v4.b32 {numbers(40, 4)}, [%rd10];
        @%p1 st.shared.v4.b32 [%r1], {numbers(40, 4)};
        bar.sync 0;
        rem.u32 %r2, %r0, {8 * n};  mul.lo.s32 %r2, %r2, 16;
        ldmatrix.sync.aligned.m8n8.x{n}{load}.shared.b16 {numbers(50, n)}, [%r2];
        bar.sync 0;
        stmatrix.sync.aligned.m8n8.x{n}{store}.shared.b16 [%r2], {numbers(50, n)};
        bar.sync 0;
        @%p1 ld.shared.v4.b32 {numbers(60, 4)}, [%r1];
        @%p1 st.global.v4.b32 [%rd10], {numbers(60, 4)};"""
        out = a.clone()
        run(kernel(body, parameters=1), out, shared_bytes=128 * n)
        tiles = a.view(n, 8, 8)
        expected = tiles if store == load else tiles.mT
        assert torch.equal(out.view(n, 8, 8), expected)


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
    a = np.linspace(0.3, 0.8, COUNT, dtype=np.float32)
    exact = apply(name, ["f32", "f32"], a)
    plays = {way: machine.Play(functions=way) for way in get_args(machine.Functions)}
    off = {way: apply(name, ["f32", "f32"], a, play=play) for way, play in plays.items()}
    np.testing.assert_array_equal(off["exact"], exact)
    np.testing.assert_array_equal(off["up"], np.nextafter(exact, np.float32(np.inf)))
    np.testing.assert_array_equal(off["down"], np.nextafter(exact, np.float32(-np.inf)))
    assert ((off["either"] == off["up"]) ^ (off["either"] == off["down"])).all()
    assert 0.3 < (off["either"] == off["up"]).mean() < 0.7
