"""Products x W of a few rows with a matrix in panels, on one CPU core, in float32.

    matrix = Matrix.of(weight)             W `[in, out]` → `[⌈out / P⌉, in, P]`: panels of P columns
    matrix.times(x)                        x `[n, in]` → `[n, out]`

A BLAS library packs the matrix on every call. For the 16 rows of a step, this takes as long as the product. Here, the
product of a tile of rows with a panel is one loop over `in` whose sums stay in vector registers. Every result is one
chain of fused multiply-adds in the order of `in`, so the bits of a row do not depend on the other rows.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

Array = NDArray[np.float32]

# Number of float32 in a vector register of the target processor. With two vectors of columns, the sums of the largest
# tile fit into the registers.
LANES = 8
LARGEST_TILE = 4
PANEL = 2 * LANES
# Prefetch distance in bytes. Panels come from beyond the second-level cache, and the hardware prefetches them too late.
AHEAD = 8192


@dataclass(frozen=True)
class Matrix:
    """A matrix in panels, padded with zero columns."""

    panels: Array  # [⌈out / P⌉, in, P]
    columns: int

    @classmethod
    def of(cls, weight: Array) -> Matrix:
        """Return the panels of a matrix `[in, out]`."""
        depth, columns = weight.shape
        count = -(-columns // PANEL)
        padded = np.zeros((depth, count * PANEL), np.float32)
        padded[:, :columns] = weight
        return cls(np.ascontiguousarray(padded.reshape(depth, count, PANEL).swapaxes(0, 1)), columns)

    def times(self, x: Array) -> Array:
        """Return x W for x `[n, in]`, as a contiguous array."""
        depth = self.panels.shape[1]
        if x.ndim != 2 or x.shape[1] != depth:  # the compiled loop would read beyond the array
            raise ValueError(f"x must be [n, {depth}], got {list(x.shape)}")
        out = np.empty((len(x), len(self.panels) * PANEL), np.float32)
        multiply(x, self.panels, out)
        return out if out.shape[1] == self.columns else np.ascontiguousarray(out[:, : self.columns])


def _tile_of(rows: int) -> Any:
    """Return a function (x, packed, out, row, panel) that computes `rows` rows of the product in one panel, beginning
    at `row`."""

    @intrinsic
    def tile(typing_context, x, packed, out, row, panel):
        signature = types.void(x, packed, out, types.intp, types.intp)

        def generate(context, builder, signature, arguments):
            arrays = [
                context.make_array(kind)(context, builder, value)
                for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
            ]
            x_data, packed_data, out_data = (array.data for array in arrays)
            (_, depth), (_, columns) = (cgutils.unpack_tuple(builder, arrays[i].shape, 2) for i in (0, 2))
            _emit_tile(builder, rows, (x_data, packed_data, out_data), arguments[3:], (depth, columns))
            return context.get_dummy_value()

        return signature, generate

    return tile


def _emit_tile(builder, rows, pointers, position, sizes):
    """Emit the loop over `in`, which has 2 · `rows` vectors of sums."""
    (x, packed, out), (row, panel), (depth, columns) = pointers, position, sizes
    index, real, lane = ir.IntType(64), ir.FloatType(), ir.IntType(32)
    vector = ir.VectorType(real, LANES)
    fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{LANES}f32")
    x_rows = [builder.gep(x, [builder.mul(builder.add(row, index(r)), depth)]) for r in range(rows)]
    start = builder.gep(packed, [builder.mul(builder.mul(panel, depth), index(PANEL))])
    zero = ir.Constant(vector, [0.0] * LANES)
    before = builder.basic_block
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(index)
    sums = [[builder.phi(vector) for _ in range(2)] for _ in range(rows)]
    place = builder.gep(start, [builder.mul(k, index(PANEL))])
    columns_of_w = [
        builder.load(builder.bitcast(builder.gep(place, [index(LANES * i)]), vector.as_pointer()), align=4)
        for i in range(2)
    ]
    _emit_prefetch(builder, place)
    following = []
    for x_row, row_sums in zip(x_rows, sums, strict=True):
        value = builder.load(builder.gep(x_row, [k]))
        single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, lane(0))
        spread = builder.shuffle_vector(
            single, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(lane, LANES), [0] * LANES)
        )
        following.append(
            [builder.call(fma, [spread, w, total]) for w, total in zip(columns_of_w, row_sums, strict=True)]
        )
    next_k = builder.add(k, index(1))
    k.add_incoming(index(0), before)
    k.add_incoming(next_k, loop)
    for row_sums, row_following in zip(sums, following, strict=True):
        for total, later in zip(row_sums, row_following, strict=True):
            total.add_incoming(zero, before)
            total.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", next_k, depth), loop, after)
    builder.position_at_end(after)
    first = builder.mul(panel, index(PANEL))
    for r, row_following in enumerate(following):
        target = builder.gep(out, [builder.add(builder.mul(builder.add(row, index(r)), columns), first)])
        for i, total in enumerate(row_following):
            part = builder.bitcast(builder.gep(target, [index(LANES * i)]), vector.as_pointer())
            builder.store(total, part, align=4)


def _emit_prefetch(builder, place):
    """Emit a prefetch of the numbers `AHEAD` bytes after a pointer. It is for reading and into every cache."""
    byte, lane = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, lane, lane, lane])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for i in range(2):
        later = builder.bitcast(builder.gep(place, [ir.IntType(64)(AHEAD // 4 + LANES * i)]), byte)
        builder.call(prefetch, [later, lane(0), lane(3), lane(1)])


_largest, _one = _tile_of(LARGEST_TILE), _tile_of(1)
SIGNATURE = "void(float32[:,::1], float32[:,:,::1], float32[:,::1])"


@njit(cache=True, nogil=True, error_model="numpy")
def multiply(x, packed, out):
    """Compute out = x W, for x `[n, in]` and out `[n, panels · P]`."""
    n = x.shape[0]
    for panel in range(packed.shape[0]):
        row = 0
        while row + LARGEST_TILE <= n:
            _largest(x, packed, out, row, panel)
            row += LARGEST_TILE
        while row < n:
            _one(x, packed, out, row, panel)
            row += 1
