"""Products x W of a few rows with a matrix in panels, on one CPU core, in float32.

    matrix = Matrix.of(weight)             W `[in, out]` → `[⌈out / P⌉, in, P]`: panels of P columns
    matrix.times(x)                        x `[n, in]` → `[n, out]`

A BLAS library packs the matrix on every call. For the 16 rows of a step, this takes as long as the product. Here, the
product of a tile of rows with some panels is one loop over `in` whose sums stay in vector registers. Every result is
one chain of fused multiply-adds in the order of `in`, so its bits depend neither on the other rows nor on the tile.

The product of one row is limited by the time to read W. A matrix is therefore stored in float16 if this is exact, and
converted in registers. The results have the same bits. Panels are arrays of 16-bit words, so that the type of a kernel
does not depend on the precision of a matrix.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from rfa.runtime.processor import converts_half

Array = NDArray[np.float32]
Panels = NDArray[np.uint16]

# Number of float32 in a vector register of the target processor.
LANES = 8
PANEL = 2 * LANES
# Rows of a tile of one panel, and panels of a tile of one row. Both have eight vectors of sums. Fewer would leave the
# processor waiting for the last addition of each sum, and more would not fit into the registers.
TALL, WIDE = 4, 4
# Prefetch distance in bytes. Panels come from beyond the second-level cache, and the hardware prefetches them too late.
AHEAD = 8192


def pack(weight: Array) -> Panels:
    """Return matrices `[..., in, out]` in panels `[..., ⌈out / P⌉, in, W]`, padded with zero columns.

    The W words of a row are P float16 (W = P) if all values of the matrices are finite and exact in float16, and
    otherwise P float32 (W = 2 P).
    """
    *stack, depth, columns = weight.shape
    count = -(-columns // PANEL)
    padded = np.zeros((*stack, depth, count * PANEL), np.float32)
    padded[..., :columns] = weight
    single = np.ascontiguousarray(padded.reshape(*stack, depth, count, PANEL).swapaxes(-3, -2))
    with np.errstate(over="ignore"):
        half = single.astype(np.float16)
    is_exact = np.array_equal(half, single) and np.isfinite(half).all()
    return (half if is_exact else single).view(np.uint16)


@dataclass(frozen=True)
class Matrix:
    """A matrix in panels."""

    panels: Panels  # see `pack`
    columns: int

    @classmethod
    def of(cls, weight: Array) -> Matrix:
        """Return the panels of a matrix `[in, out]`."""
        return cls(pack(weight), weight.shape[1])

    def times(self, x: Array) -> Array:
        """Return x W for x `[n, in]`, as a contiguous array."""
        depth = self.panels.shape[1]
        if x.ndim != 2 or x.shape[1] != depth:  # the compiled loop would read beyond the array
            raise ValueError(f"x must be [n, {depth}], got {list(x.shape)}")
        out = np.empty((len(x), len(self.panels) * PANEL), np.float32)
        multiply(x, self.panels, out)
        return out if out.shape[1] == self.columns else np.ascontiguousarray(out[:, : self.columns])


INDEX, LANE, WORD = ir.IntType(64), ir.IntType(32), ir.IntType(16)
VECTOR = ir.VectorType(ir.FloatType(), LANES)


class Format(NamedTuple):
    """Format of the numbers in panels.

    Attributes:
        words: Words per number.
        load: Function (context, builder, place) that emits the load of LANES numbers at a pointer to words.
    """

    words: int
    load: Callable[..., Any]


def _load_single(_, builder, place):
    return builder.load(builder.bitcast(place, VECTOR.as_pointer()), align=4)


def _load_half(context, builder, place):
    if not converts_half(*context.codegen().magic_tuple()):
        return _load_half_portably(context, builder, place)
    vector = ir.VectorType(ir.HalfType(), LANES)
    return builder.fpext(builder.load(builder.bitcast(place, vector.as_pointer()), align=2), VECTOR)


def _load_half_portably(_, builder, place):
    """Emit the load of finite float16 for processors without an instruction for it. For them, LLVM would call a
    function of a library that may be missing."""
    bits = ir.VectorType(LANE, LANES)
    words = builder.load(builder.bitcast(place, ir.VectorType(WORD, LANES).as_pointer()), align=2)
    # Move the sign to bit 31, and exponent and fraction to their place in a float32, whose exponent has another bias.
    moved = builder.shl(builder.sext(words, bits), ir.Constant(bits, [13] * LANES))
    small = builder.and_(moved, ir.Constant(bits, [0x8FFFE000] * LANES))
    return builder.fmul(builder.bitcast(small, VECTOR), ir.Constant(VECTOR, [2.0**112] * LANES))


HALF, SINGLE = Format(1, _load_half), Format(2, _load_single)


def _tile_of(rows: int, panels: int, numbers: Format) -> Any:
    """Return a function (x, packed, out, row, panel) that computes a tile of the product, beginning at `row` and
    `panel`."""

    @intrinsic
    def tile(typing_context, x, packed, out, row, panel):
        signature = types.void(x, packed, out, types.intp, types.intp)

        def generate(context, builder, signature, arguments):
            arrays = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
            ]
            (_, depth), (_, columns) = (cgutils.unpack_tuple(builder, arrays[i].shape, 2) for i in (0, 2))
            x_data, words, out_data = (array.data for array in arrays)
            row, panel = arguments[3:]
            x_rows = _parts(builder, x_data, row, rows, depth)
            length = builder.mul(depth, INDEX(PANEL * numbers.words))
            load = partial(_emit_columns, context, builder, numbers, _parts(builder, words, panel, panels, length))
            sums = _emit_sums(builder, x_rows, load, depth, 2 * panels)
            first = builder.mul(panel, INDEX(PANEL))
            for of_row, target in zip(sums, _parts(builder, out_data, row, rows, columns), strict=True):
                _emit_stores(builder, of_row, builder.gep(target, [first]))
            return context.get_dummy_value()

        return signature, generate

    return tile


def _parts(builder, data, first, count, length):
    """Return pointers to `count` parts of an array, which have `length` elements each."""
    return [builder.gep(data, [builder.mul(builder.add(first, INDEX(i)), length)]) for i in range(count)]


def _emit_sums(builder, x_rows, load, depth, vectors):
    """Emit the loop over `in`. Return the vectors of sums of each row.

    Args:
        x_rows: Pointers to rows of x.
        load: Function that emits the load of the vectors of W at an index of `in`.
        depth: Length of the loop.
        vectors: Number of vectors of a row.
    """
    fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fma.v{LANES}f32")
    before = builder.basic_block
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(INDEX)
    sums = [[builder.phi(VECTOR) for _ in range(vectors)] for _ in x_rows]
    columns = load(k)
    following = []
    for x_row, row_sums in zip(x_rows, sums, strict=True):
        spread = _emit_spread(builder, builder.load(builder.gep(x_row, [k])))
        following.append([builder.call(fma, [spread, w, total]) for w, total in zip(columns, row_sums, strict=True)])
    next_k = builder.add(k, INDEX(1))
    k.add_incoming(INDEX(0), before)
    k.add_incoming(next_k, loop)
    for row_sums, row_following in zip(sums, following, strict=True):
        for total, later in zip(row_sums, row_following, strict=True):
            total.add_incoming(ir.Constant(VECTOR, [0.0] * LANES), before)
            total.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", next_k, depth), loop, after)
    builder.position_at_end(after)
    return following


def _emit_columns(context, builder, numbers, starts, k):
    """Emit the loads of the numbers at index k of `in` in each panel, and prefetches of later ones."""
    vectors = []
    for start in starts:
        place = builder.gep(start, [builder.mul(k, INDEX(PANEL * numbers.words))])
        for i in range(2):
            part = builder.gep(place, [INDEX(LANES * numbers.words * i)])
            vectors.append(numbers.load(context, builder, part))
        _emit_prefetch(builder, place)
    return vectors


def _emit_spread(builder, value):
    """Return a vector of equal numbers."""
    undefined = ir.Constant(VECTOR, ir.Undefined)
    single = builder.insert_element(undefined, value, LANE(0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(LANE, LANES), [0] * LANES))


def _emit_stores(builder, vectors, target):
    """Emit the stores of vectors, one after another."""
    for i, vector in enumerate(vectors):
        part = builder.bitcast(builder.gep(target, [INDEX(LANES * i)]), VECTOR.as_pointer())
        builder.store(vector, part, align=4)


def _emit_prefetch(builder, place):
    """Emit a prefetch of the numbers `AHEAD` bytes after a pointer. It is for reading and into every cache."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, LANE, LANE, LANE])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    later = builder.gep(builder.bitcast(place, byte), [INDEX(AHEAD)])
    builder.call(prefetch, [later, LANE(0), LANE(3), LANE(1)])


def product_of(numbers: Format) -> Any:
    """Return a function that computes a product with panels of a format. See `multiply`."""
    tall, wide, one = (_tile_of(*shape, numbers) for shape in ((TALL, 1), (1, WIDE), (1, 1)))

    @njit(error_model="numpy")
    def product(x, packed, out):
        n, panels = x.shape[0], packed.shape[0]
        tiled = n - n % TALL
        for first in range(0, panels, WIDE):
            end = min(first + WIDE, panels)
            for panel in range(first, end):
                for row in range(0, tiled, TALL):
                    tall(x, packed, out, row, panel)
            for row in range(tiled, n):
                if end == first + WIDE:
                    wide(x, packed, out, row, first)
                else:
                    for panel in range(first, end):
                        one(x, packed, out, row, panel)

    return product


_half_product, _single_product = product_of(HALF), product_of(SINGLE)
SIGNATURE = "void(float32[:,::1], uint16[:,:,::1], float32[:,::1])"


@njit(cache=True, nogil=True, error_model="numpy")
def multiply(x, packed, out):
    """Compute out = x W, for x `[n, in]`, packed = `pack(W)` and out `[n, panels · P]`."""
    if packed.shape[2] == PANEL:
        _half_product(x, packed, out)
    else:
        _single_product(x, packed, out)
