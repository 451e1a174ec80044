"""Every instruction of the emulator against what NumPy, or a loop over the definition, makes of the same numbers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
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
SMALLEST = np.finfo(np.float32).tiny


def flush(x: Any) -> Any:
    return np.where(np.abs(x) < SMALLEST, np.copysign(np.float32(0), x), x)


def fused(a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once: a product of two float32 is exact in float64, and 80 bits hold nearly all of the sum."""
    return (a.astype(np.longdouble) * b + c).astype(a.dtype)


def bits_of_bfloat(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(np.uint16)


def of_bfloat(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).float().numpy()


def pair(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return high.astype(np.uint32) << 16 | low


def shift(a: np.ndarray, n: np.ndarray, direction: int) -> np.ndarray:
    """By Python's integers, which have no width."""
    moved = [int(x) << int(k) if direction > 0 else int(x) >> int(k) for x, k in zip(a, np.minimum(n, 99), strict=True)]
    mask = 2 ** (8 * a.itemsize) - 1
    return np.array([x & mask for x in moved], dtype=f"u{a.itemsize}").view(a.dtype)


def bit_field(a: np.ndarray, at: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Python's integers go on with the sign."""

    def one(x: int, i: int, k: int) -> int:
        field = (x >> i) & (2**k - 1)
        return field - 2**k if a.dtype.kind == "i" and k and field >> (k - 1) & 1 else field

    values = [one(int(x), int(i) & 255, int(k) & 255) for x, i, k in zip(a, at, n, strict=True)]
    return np.array([x & 0xFFFFFFFF for x in values], dtype=np.uint32).view(a.dtype)


def chosen_bytes(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    both = np.stack([a, b], 1).view(np.uint8)  # [n, 8]
    found = [[row[k >> 4 * i & 7] for i in range(4)] for row, k in zip(both, c.tolist(), strict=True)]
    signs = [[k >> 4 * i & 8 for i in range(4)] for k in c.tolist()]
    spread = np.where(np.array(found) & 0x80, 255, 0)
    return np.where(np.array(signs), spread, found).astype(np.uint8).view(np.uint32)[:, 0]


def funnel(low: np.ndarray, high: np.ndarray, n: np.ndarray, direction: int) -> np.ndarray:
    both = high.astype(np.uint64) << np.uint64(32) | low
    n = (n & 31).astype(np.uint64)
    return (both << n >> np.uint64(32) if direction > 0 else both >> n).astype(np.uint32)


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


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    mask = 2 ** (8 * a.itemsize) - 1
    values = [(int(x) - q * int(y)) & mask for x, y, q in zip(a, b, divide(a, b), strict=True)]
    return np.array(values, dtype=f"u{a.itemsize}").view(a.dtype)


def to_integer(x: np.ndarray) -> np.ndarray:
    return np.nan_to_num(np.clip(x.astype(np.float64), -(2**31), 2**31 - 1)).astype(np.int32)


def to_wide(x: np.ndarray) -> np.ndarray:
    """NaN is the smallest."""
    lowest, highest = -(2**63), 2**63 - 1
    numbers = x.astype(np.float64).tolist()
    found = [lowest if math.isnan(n) else int(n) if abs(n) < 2.0**63 else highest if n > 0 else lowest for n in numbers]
    return np.array(found, dtype=np.int64)


def set_bits(a: np.ndarray) -> np.ndarray:
    return np.array([int(x).bit_count() for x in a])


def by_sign(pick: Callable[..., Any], *, is_largest: bool) -> Callable[..., Any]:
    """A choice that also tells -0 from the larger 0."""
    return lambda a, b: np.where(a == b, np.where(np.signbit(a) == is_largest, b, a), pick(a, b))


# name → (result and arguments, what it is).
EACH: dict[str, tuple[str, Callable[..., Any]]] = {
    "abs.f32": ("f32 f32", np.abs),
    "abs.ftz.f32": ("f32 f32", lambda a: np.abs(flush(a))),
    "add.f64": ("f64 f64 f64", np.add),
    "add.f32": ("f32 f32 f32", np.add),
    "add.rn.f32": ("f32 f32 f32", np.add),
    "add.s32": ("u32 u32 u32", np.add),
    "add.s64": ("u64 u64 u64", np.add),
    "add.u64": ("u64 u64 u64", np.add),
    "and.b16": ("b16 b16 b16", np.bitwise_and),
    "and.b32": ("b32 b32 b32", np.bitwise_and),
    "and.b64": ("b64 b64 b64", np.bitwise_and),
    "bfe.s32": ("s32 s32 u32 u32", bit_field),
    "bfe.u32": ("u32 u32 u32 u32", bit_field),
    "cvt.f32.bf16": ("f32 b16", of_bfloat),
    "cvt.f32.f16": ("f32 f16", lambda a: a.astype(np.float32)),
    "cvt.f64.f32": ("f64 f32", lambda a: a.astype(np.float64)),
    "cvt.rmi.ftz.f32.f32": ("f32 f32", lambda a: np.floor(flush(a))),
    "cvt.rn.bf16.f32": ("b16 f32", bits_of_bfloat),
    "cvt.rn.bf16x2.f32": ("b32 f32 f32", lambda a, b: pair(bits_of_bfloat(a), bits_of_bfloat(b))),
    "cvt.rn.f16.f32": ("f16 f32", lambda a: a.astype(np.float16)),
    "cvt.rn.f16x2.f32": (
        "b32 f32 f32",
        lambda a, b: pair(a.astype(np.float16).view(np.uint16), b.astype(np.float16).view(np.uint16)),
    ),
    "cvt.rn.f32.f64": ("f32 f64", lambda a: a.astype(np.float32)),
    "cvt.rn.f32.s32": ("f32 s32", lambda a: a.astype(np.float32)),
    "cvt.rn.f32.s64": ("f32 s64", lambda a: a.astype(np.float32)),
    "cvt.rn.f32.u32": ("f32 u32", lambda a: a.astype(np.float32)),
    "cvt.rn.f64.s64": ("f64 s64", lambda a: a.astype(np.float64)),
    "cvt.rni.ftz.s32.f32": ("s32 f32", lambda a: to_integer(np.rint(flush(a)))),
    "cvt.rzi.s32.f32": ("s32 f32", lambda a: to_integer(np.trunc(a))),
    "cvt.rzi.s64.f32": ("s64 f32", to_wide),
    "cvt.rzi.s64.f64": ("s64 f64", to_wide),
    "cvt.s64.s32": ("s64 s32", lambda a: a.astype(np.int64)),
    "cvt.u16.u32": ("u16 u32", lambda a: a.astype(np.uint16)),
    "cvt.u16.u64": ("u16 u64", lambda a: a.astype(np.uint16)),
    "cvt.u32.u16": ("u32 u16", lambda a: a.astype(np.uint32)),
    "cvt.u32.u64": ("u32 u64", lambda a: a.astype(np.uint32)),
    "cvt.u64.u16": ("u64 u16", lambda a: a.astype(np.uint64)),
    "cvt.u64.u32": ("u64 u32", lambda a: a.astype(np.uint64)),
    "div.full.f32": ("f32 f32 f32", np.divide),
    "div.rn.f32": ("f32 f32 f32", np.divide),
    "div.rn.f64": ("f64 f64 f64", np.divide),
    "div.s32": ("s32 s32 s32", quotient),
    "div.s64": ("s64 s64 s64", quotient),
    "div.u32": ("u32 u32 u32", quotient),
    "div.u64": ("u64 u64 u64", quotient),
    "ex2.approx.f32": ("f32 f32", lambda a: np.exp2(a.astype(np.float64)).astype(np.float32)),
    "ex2.approx.ftz.f32": ("f32 f32", lambda a: flush(np.exp2(a.astype(np.float64)).astype(np.float32))),
    "fma.rn.f32": ("f32 f32 f32 f32", fused),
    "fma.rn.f64": ("f64 f64 f64 f64", fused),
    "fma.rn.ftz.f32": ("f32 f32 f32 f32", lambda a, b, c: flush(fused(flush(a), flush(b), flush(c)))),
    "lg2.approx.ftz.f32": ("f32 f32", lambda a: np.log2(flush(a).astype(np.float64)).astype(np.float32)),
    "mad.lo.s32": ("u32 u32 u32 u32", lambda a, b, c: a * b + c),
    "mad.lo.s64": ("u64 u64 u64 u64", lambda a, b, c: a * b + c),
    "mad.wide.u16": ("u32 u16 u16 u32", lambda a, b, c: a.astype(np.uint32) * b + c),
    "mad.wide.s32": ("s64 s32 s32 s64", lambda a, b, c: a.astype(np.int64) * b + c),
    "mad.wide.u32": ("u64 u32 u32 u64", lambda a, b, c: a.astype(np.uint64) * b + c),
    "max.NaN.f32": ("f32 f32 f32", by_sign(np.maximum, is_largest=True)),
    "max.f32": ("f32 f32 f32", by_sign(np.fmax, is_largest=True)),
    "max.s32": ("s32 s32 s32", np.maximum),
    "max.u32": ("u32 u32 u32", np.maximum),
    "max.s64": ("s64 s64 s64", np.maximum),
    "min.u32": ("u32 u32 u32", np.minimum),
    "min.u64": ("u64 u64 u64", np.minimum),
    "min.NaN.f32": ("f32 f32 f32", by_sign(np.minimum, is_largest=False)),
    "min.f32": ("f32 f32 f32", by_sign(np.fmin, is_largest=False)),
    "min.s32": ("s32 s32 s32", np.minimum),
    "min.s64": ("s64 s64 s64", np.minimum),
    "mul.f32": ("f32 f32 f32", np.multiply),
    "mul.rn.f32": ("f32 f32 f32", np.multiply),
    "mul.f64": ("f64 f64 f64", np.multiply),
    "mul.lo.s32": ("u32 u32 u32", np.multiply),
    "mul.lo.s64": ("u64 u64 u64", np.multiply),
    "mul.rn.ftz.f32": ("f32 f32 f32", lambda a, b: flush(flush(a) * flush(b))),
    "mul.wide.s16": ("s32 s16 s16", lambda a, b: a.astype(np.int32) * b),
    "mul.wide.s32": ("s64 s32 s32", lambda a, b: a.astype(np.int64) * b),
    "mul.wide.u32": ("u64 u32 u32", lambda a, b: a.astype(np.uint64) * b),
    "neg.f32": ("f32 f32", np.negative),
    "neg.s16": ("s16 s16", np.negative),
    "neg.s32": ("s32 s32", np.negative),
    "neg.s64": ("s64 s64", np.negative),
    "not.b32": ("b32 b32", np.invert),
    "or.b16": ("b16 b16 b16", np.bitwise_or),
    "or.b32": ("b32 b32 b32", np.bitwise_or),
    "or.b64": ("b64 b64 b64", np.bitwise_or),
    "popc.b32": ("u32 u32", set_bits),
    "popc.b64": ("u32 u64", set_bits),
    "prmt.b32": ("b32 b32 b32 b32", chosen_bytes),
    "rcp.approx.ftz.f32": ("f32 f32", lambda a: flush(1 / flush(a))),
    "rem.s32": ("s32 s32 s32", remainder),
    "rem.s64": ("s64 s64 s64", remainder),
    "rem.u32": ("u32 u32 u32", remainder),
    "rem.u64": ("u64 u64 u64", remainder),
    "rsqrt.approx.ftz.f32": ("f32 f32", lambda a: (1 / np.sqrt(flush(a).astype(np.float64))).astype(np.float32)),
    "shf.l.wrap.b32": ("b32 b32 b32 b32", lambda a, b, n: funnel(a, b, n, 1)),
    "shf.r.wrap.b32": ("b32 b32 b32 b32", lambda a, b, n: funnel(a, b, n, -1)),
    "shl.b16": ("b16 b16 u32", lambda a, n: shift(a, n, 1)),
    "shl.b32": ("b32 b32 u32", lambda a, n: shift(a, n, 1)),
    "shl.b64": ("b64 b64 u32", lambda a, n: shift(a, n, 1)),
    "shr.s32": ("s32 s32 u32", lambda a, n: shift(a, n, -1)),
    "shr.s64": ("s64 s64 u32", lambda a, n: shift(a, n, -1)),
    "shr.u16": ("u16 u16 u32", lambda a, n: shift(a, n, -1)),
    "shr.u32": ("u32 u32 u32", lambda a, n: shift(a, n, -1)),
    "shr.u64": ("u64 u64 u32", lambda a, n: shift(a, n, -1)),
    "sqrt.rn.f32": ("f32 f32", np.sqrt),
    "sub.f16": ("f16 f16 f16", np.subtract),
    "sub.f32": ("f32 f32 f32", np.subtract),
    "sub.rn.f32": ("f32 f32 f32", np.subtract),
    "sub.f64": ("f64 f64 f64", np.subtract),
    "sub.s32": ("u32 u32 u32", np.subtract),
    "sub.s64": ("u64 u64 u64", np.subtract),
    "xor.b16": ("b16 b16 b16", np.bitwise_xor),
    "xor.b32": ("b32 b32 b32", np.bitwise_xor),
    "xor.b64": ("b64 b64 b64", np.bitwise_xor),
}
# Exact functions of the platform, which are not always rounded right.
ONE_ULP = ("ex2.", "lg2.")
# Nothing is promised where the divisor is 0.
BY_NUMBERS = ("div.s", "div.u", "rem.")

COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "ne": lambda a, b: (a < b) | (b < a),
    "equ": lambda a, b: ~((a < b) | (b < a)),
    "neu": lambda a, b: ~(a == b), "ltu": lambda a, b: ~(a >= b), "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b), "geu": lambda a, b: ~(a < b), "nan": lambda a, b: np.isnan(a) | np.isnan(b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
}  # fmt: skip
COMPARED = [
    *(f"setp.{name}.f32" for name in COMPARISONS if name != "equ"),
    *("setp.le.f64", "setp.ne.f64", "setp.equ.f64"),
    *(f"setp.{name}.b{bits}" for name in ("eq", "ne") for bits in (16, 32, 64)),
    *(f"setp.{name}.s32" for name in ("lt", "le", "gt", "ge")),
    *("setp.lt.u32", "setp.gt.u32", "setp.lt.u64", "setp.gt.u64"),
    *(f"setp.{name}.s64" for name in ("lt", "le", "gt", "ge")),
]
PREDICATES: dict[str, Callable[..., Any]] = {
    "and.pred": np.logical_and, "or.pred": np.logical_or, "xor.pred": np.logical_xor,
    "not.pred": lambda a, b: ~a, "mov.pred": lambda a, b: a,
}  # fmt: skip
# Those that are not a function of a lane's own numbers, each in a test below or in test_ptx_faults.py.
OTHERS = re.compile(
    r"bar\.(warp\.)?sync|bra(\.uni)?|ret|mov\.[bu]\d+|selp\.\w+|shfl\.sync\.\w+\.b32|redux\.sync\.\w+\.s32"
    r"|mad\.lo\.cc\.u32|madc\.hi\.u32|(ld|st)\.\w+\.[bs]\d+|cp\.async\..*|(ld|st)matrix\..*|mma\..*|wgmma\..*|fence\..*"
)


def values(kind: str, n: int, seed: int) -> np.ndarray:
    """n numbers: the edges of the type, each against each, and random ones of every size."""
    dtype: Any = np.dtype(KINDS[kind])
    generator = np.random.default_rng(seed)
    if dtype.kind == "f":
        info = np.finfo(dtype)
        edges = [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, np.inf, -np.inf, np.nan, info.max, info.tiny, -info.tiny / 4, 1e-2]
        reach = min(20, info.maxexp - 4)
        found = generator.normal(size=n) * 2.0 ** generator.integers(-reach, reach, n)
    else:
        bounds = np.iinfo(dtype)
        edges = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 255, bounds.max, bounds.min, bounds.max - 1]
        found = generator.integers(bounds.min, bounds.max, n, dtype=dtype, endpoint=True)
        found >>= generator.integers(0, 8 * dtype.itemsize, n).astype(dtype)
    out = found.astype(dtype)
    repeated = np.array(edges).astype(dtype) if dtype.kind == "f" else np.array(edges, dtype=object).astype(dtype)
    grid = np.repeat(repeated, len(edges)) if seed % 2 else np.tile(repeated, len(edges))
    out[: len(grid)] = grid
    return out


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


def assert_same(actual: np.ndarray, expected: np.ndarray, *, ulp: int = 0) -> None:
    """Bit by bit, but for NaN, of which there are many."""
    if actual.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected)
        return
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), ~is_number)
    integer = f"i{actual.itemsize}"
    off = actual[is_number].view(integer).astype(object) - expected[is_number].view(integer).astype(object)
    assert max(map(abs, off)) <= ulp, (actual[is_number], expected[is_number])


@pytest.mark.parametrize("name", EACH)
def test_functions_of_a_lane(name: str) -> None:
    signature, oracle = EACH[name]
    kinds = signature.split()
    arguments = [values(kind, COUNT, seed) for seed, kind in enumerate(kinds[1:], 1)]
    if name.startswith(BY_NUMBERS):
        arguments[1][arguments[1] == 0] = 3
    if name.startswith("cvt") and kinds[0].startswith("b"):  # numbers as bits: of NaN there are many
        for x in arguments:
            x[np.isnan(x)] = 1
    with np.errstate(all="ignore"):
        expected = np.asarray(oracle(*arguments)).astype(KINDS[kinds[0]])
    assert_same(apply(name, kinds, *arguments), expected, ulp=int(name.startswith(ONE_ULP)))


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons(name: str) -> None:
    _, comparison, kind = name.split(".")
    a, b = values(kind, COUNT, 1), values(kind, COUNT, 2)
    instruction = f"{name} %p1, {register(kind, 1)}, {register(kind, 2)};\nselp.b32 %r20, 1, 0, %p1;"
    out = np.zeros(COUNT, np.uint32)
    run(of_elements(instruction, ["u32", kind, kind]), memory(out), memory(a), memory(b), grid=COUNT // 32)
    np.testing.assert_array_equal(out, COMPARISONS[comparison](a, b))


@pytest.mark.parametrize("name", PREDICATES)
def test_predicates(name: str) -> None:
    operands = "%p1" if name in ("not.pred", "mov.pred") else "%p1, %p2"
    body = f"""
    and.b32 %r1, %r0, 1;  setp.ne.b32 %p1, %r1, 0;
    and.b32 %r2, %r0, 2;  setp.ne.b32 %p2, %r2, 0;
    {name} %p3, {operands};
    selp.b32 %r3, 1, 0, %p3;
    mad.wide.u32 %rd10, %r0, 4, %rd0;  st.global.b32 [%rd10], %r3;"""
    out = words(32)
    run(kernel(body, parameters=1), out)
    lanes = np.arange(32)
    np.testing.assert_array_equal(out, PREDICATES[name]((lanes & 1) > 0, (lanes & 2) > 0))


@pytest.mark.parametrize("name", ["selp.b16", "selp.b32", "selp.f32", "selp.b64"])
def test_choices(name: str) -> None:
    kind = {"selp.b16": "b16", "selp.b64": "u64"}.get(name, "u32")
    a, b = values(kind, COUNT, 1), values(kind, COUNT, 2)
    registers = [register(kind, i) for i in range(3)]
    instruction = f"setp.lt.u32 %p1, %r0, 7;\n{name} {', '.join(registers)}, %p1;"
    out = np.zeros(COUNT, KINDS[kind])
    run(of_elements(instruction, [kind, kind, kind]), memory(out), memory(a), memory(b), grid=COUNT // 32)
    np.testing.assert_array_equal(out, np.where(np.arange(COUNT) % 32 < 7, a, b))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mov.b16", "b16"),
        ("mov.u16", "b16"),
        ("mov.b32", "u32"),
        ("mov.u32", "u32"),
        ("mov.b64", "u64"),
        ("mov.u64", "u64"),
    ],
)
def test_moves(name: str, kind: str) -> None:
    a = values(kind, COUNT, 1)
    np.testing.assert_array_equal(apply(name, [kind, kind], a), a)
    if kind != "b16":
        half = {"u32": "%rs", "u64": "%r"}[kind]
        swapped = (
            f"{name} {{{half}1, {half}2}}, {register(kind, 1)};\n{name} {register(kind, 0)}, {{{half}2, {half}1}};"
        )
        out = np.zeros(COUNT, KINDS[kind])
        run(of_elements(swapped, [kind, kind]), memory(out), memory(a), grid=COUNT // 32)
        n = 4 * a.itemsize
        np.testing.assert_array_equal(out, a << KINDS[kind](n) | a >> KINDS[kind](n))
        upper = f"{name} {{_, {half}2}}, {register(kind, 1)};\n{name} {register(kind, 0)}, {{{half}2, {half}2}};"
        run(of_elements(upper, [kind, kind]), memory(out), memory(a), grid=COUNT // 32)
        np.testing.assert_array_equal(out, (a >> KINDS[kind](n)) * KINDS[kind](2**n + 1))


@pytest.mark.parametrize(("instruction", "expected"), [
    ("shfl.sync.bfly.b32 %r20, %r21, 5, 31, -1;", lambda a: a[np.arange(32) ^ 5]),
    ("shfl.sync.idx.b32 %r20, %r21, 9, 31, -1;", lambda a: a[[9] * 32]),
    ("shfl.sync.up.b32 %r20, %r21, 4, 0, -1;", lambda a: a[[*range(4), *range(28)]]),
    ("redux.sync.max.s32 %r20, %r21, -1;", lambda a: [a.view(np.int32).max()] * 32),
    ("redux.sync.min.s32 %r20, %r21, -1;", lambda a: [a.view(np.int32).min()] * 32),
    ("redux.sync.add.s32 %r20, %r21, -1;", lambda a: [a.sum(dtype=np.uint32)] * 32),
])  # fmt: skip
def test_lanes_read_each_other(instruction: str, expected: Callable[..., Any]) -> None:
    a = values("u32", COUNT, 1)
    out = np.zeros(COUNT, np.uint32)
    run(of_elements(instruction, ["u32", "u32"]), memory(out), memory(a), grid=COUNT // 32)
    for actual, given in zip(out.reshape(-1, 32), a.reshape(-1, 32), strict=True):
        np.testing.assert_array_equal(
            actual.view(np.int32), np.asarray(expected(given)).astype(np.uint32).view(np.int32)
        )


def test_a_carry_goes_on() -> None:
    """A product of 64 by 32 bits, plus a third number, in 64."""
    a, b, c = values("u32", COUNT, 1), values("u32", COUNT, 2), values("u32", COUNT, 3)
    instruction = (
        "mad.lo.cc.u32 %r30, %r21, %r22, %r23;\nmadc.hi.u32 %r31, %r21, %r22, 0;\nmov.b64 %rd20, {%r30, %r31};"
    )
    out = np.zeros(COUNT, np.uint64)
    run(of_elements(instruction, ["u64", "u32", "u32", "u32"]), *map(memory, (out, a, b, c)), grid=COUNT // 32)
    np.testing.assert_array_equal(out, a.astype(np.uint64) * b + c)


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


def test_words_of_64_bits_in_shared_memory() -> None:
    """Pairs, swapped on the way; and words of 32 bits, read into wider registers with their sign and without."""
    body = """
    mul.lo.s32 %r1, %r0, 16;  cvt.u64.u32 %rd1, %r0;  shl.b64 %rd2, %rd1, 40;  neg.s64 %rd3, %rd2;
    st.shared.v2.b64 [%r1], {%rd2, %rd3};  ld.shared.b64 %rd4, [%r1+8];  ld.shared.b64 %rd5, [%r1];
    ld.shared.s32 %rd6, [%r1+12];  ld.shared.b32 %rd7, [%r1+12];
    mad.wide.u32 %rd10, %r0, 32, %rd0;
    st.global.b64 [%rd10], %rd4;  st.global.b64 [%rd10+8], %rd5;
    st.global.v2.b64 [%rd10+16], {%rd6, %rd7};"""
    out, required = torch.zeros(32, 4, dtype=torch.int64), torch.arange(32) << 40
    run(kernel(body, parameters=1), out, shared_bytes=512)
    high = -required >> 32
    assert torch.equal(out, torch.stack([-required, required, high, high & 0xFFFFFFFF], 1))


def test_words_of_16_bits_in_shared_memory() -> None:
    body = """
    mul.lo.s32 %r1, %r0, 2;  cvt.rn.f32.u32 %r2, %r0;  cvt.rn.f16.f32 %rs1, %r2;
    st.shared.b16 [%r1+64], %rs1;  ld.shared.b16 %rs2, [%r1+64];
    cvt.f32.f16 %r3, %rs2;
    mad.wide.u32 %rd10, %r0, 4, %rd0;  st.global.b32 [%rd10], %r3;"""
    out = torch.zeros(32)
    run(kernel(body, parameters=1), out, shared_bytes=128)
    np.testing.assert_array_equal(out, np.arange(32))


def test_bytes_in_shared_memory() -> None:
    """Of registers of 16 bits, of which the lower half is written; and half words, read into wider registers."""
    body = """
    mul.lo.s32 %r1, %r0, 2;  cvt.u16.u32 %rs1, %r0;  cvt.u16.u32 %rs2, %r1;
    st.shared.v2.b8 [%r1], {%rs1, %rs2};  ld.shared.b8 %rs3, [%r1+1];  ld.shared.b16 %r2, [%r1];
    cvt.u32.u16 %r3, %rs3;
    mad.wide.u32 %rd10, %r0, 8, %rd0;  st.global.v2.b32 [%rd10], {%r2, %r3};"""
    out, lane = words(64), np.arange(32)
    run(kernel(body, parameters=1), out, shared_bytes=64)
    np.testing.assert_array_equal(out.reshape(32, 2), np.stack([lane + 256 * 2 * lane, 2 * lane], 1))


def test_parameters_keep_their_sign() -> None:
    body = """
    ld.param.s32 %rd5, [p1];  ld.param.b32 %r2, [p1];  ld.param.b64 %rd6, [p1];
    mov.b64 {%r4, %r5}, %rd5;  mov.b64 {%r6, %r7}, %rd6;
    st.global.v4.b32 [%rd0], {%r4, %r5, %r6, %r7};  st.global.b32 [%rd0+16], %r2;"""
    out = words(6)
    machine.run(machine.load(kernel(body, parameters=2)), (1,), [out, -5])
    np.testing.assert_array_equal(out, [-5, -1, -5, -1, -5, 5])


def test_the_lower_part_of_a_wider_register_is_converted() -> None:
    """With its sign and without, whatever lies above it."""
    body = """
    mad.wide.u32 %rd1, %r0, 24, %rd0;  ld.global.b64 %rd2, [%rd1];
    cvt.s64.s32 %rd3, %rd2;  cvt.u64.u16 %rd4, %rd2;  cvt.rn.f32.s32 %r2, %rd2;
    st.global.b64 [%rd1], %rd3;  st.global.b64 [%rd1+8], %rd4;  st.global.b32 [%rd1+16], %r2;"""
    numbers = (torch.arange(32) - 16) * 0x3_9876_5432 + (torch.arange(32) << 40)
    out = torch.stack([numbers, torch.zeros_like(numbers), torch.zeros_like(numbers)], 1)
    run(kernel(body, parameters=1), out)
    lowest = numbers.to(torch.int32)
    assert torch.equal(out[:, 0], lowest.long()) and torch.equal(out[:, 1], numbers & 0xFFFF)
    assert torch.equal(out[:, 2].to(torch.int32), lowest.float().view(torch.int32))


def test_constants_have_an_address() -> None:
    constants = ".global .align 4 .b8 table[8] = {1, 0, 0, 0, 2, 1, 0, 0};\n"
    body = """
    mov.b64 %rd2, table;  and.b32 %r1, %r0, 1;  mad.wide.u32 %rd3, %r1, 4, %rd2;  ld.global.nc.b32 %r2, [%rd3];
    mad.wide.u32 %rd10, %r0, 4, %rd0;  st.global.b32 [%rd10], %r2;"""
    out = words(32)
    run(kernel(body, parameters=1, constants=constants), out)
    np.testing.assert_array_equal(out, [1, 258] * 16)


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


def test_every_instruction_is_tested() -> None:
    in_tables = {*EACH, *COMPARED, *PREDICATES}
    assert in_tables <= set(machine.opcodes())
    assert not [name for name in machine.opcodes() if name not in in_tables and not OTHERS.fullmatch(name)]


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
