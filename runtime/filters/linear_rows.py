"""Layout of the scratch memory of one stream of a linear filter, and the solution of S = L D Lᵀ in it."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rfa.runtime.compiling import inline_jit


class Rows(NamedTuple):
    """First index of each vector or matrix in `work`. Matrices are stored in row-major order.

    The state of a stream ends before `scale`, the observation before `f`, F and Q of its lag before `matrix`, and the
    sensor (C, b, R) before `prior_mean`. The remaining entries hold intermediate results.
    """

    mean: int
    covariance: int
    offset: int
    evidence: int
    scale: int
    value: int
    f: int
    q: int
    matrix: int
    bias: int
    noise: int
    prior_mean: int
    prior: int
    rival: int
    product: int
    cross: int
    gain: int
    scaled: int
    excess: int
    step: int
    signal: int
    seen_noise: int
    nominal: int
    weighted: int
    opened: int
    present: int
    innovation: int
    expected: int
    solved: int
    residual: int
    seen: int
    weight: int
    gate: int
    nis: int
    rival_distance: int
    growth: int
    ratio: int
    jump: int
    end: int


@inline_jit
def rows_of(sizes):
    """Return the layout for sizes (n, P, whether C is the first rows of the identity)."""
    n, p, _ = sizes
    mean = 0
    covariance = mean + n
    offset = covariance + n * n
    evidence = offset + n
    scale = evidence + 1
    value = scale + 1
    f = value + p
    q = f + n * n
    matrix = q + n * n
    bias = matrix + p * n
    noise = bias + p
    prior_mean = noise + p * p
    prior = prior_mean + n
    rival = prior + n * n
    product = rival + n
    cross = product + n * n
    gain, scaled, excess, step = cross + n * p, cross + 2 * n * p, cross + 3 * n * p, cross + 4 * n * p
    signal = step + n
    seen_noise, nominal, weighted = signal + p * p, signal + 2 * p * p, signal + 3 * p * p
    opened, present = signal + 4 * p * p, signal + 5 * p * p
    innovation, expected, solved = present + p, present + 2 * p, present + 3 * p
    residual, seen = present + 4 * p, present + 5 * p
    return Rows(
        mean, covariance, offset, evidence, scale, value, f, q, matrix, bias, noise, prior_mean, prior, rival, product,
        cross, gain, scaled, excess, step, signal, seen_noise, nominal, weighted, opened, present, innovation, expected,
        solved, residual, seen, seen + 1, seen + 2, seen + 3, seen + 4, seen + 5, seen + 6, seen + 7, seen + 8,
    )  # fmt: skip


@inline_jit
def u(index):
    """Return an unsigned index. For such an index, numba does not check whether it counts from the end."""
    return np.uint64(index)


@inline_jit
def add_dot(work, out, sign, a, a_step, b, b_step, count):
    """Compute work[out] += sign · Σ_k work[a + k a_step] · work[b + k b_step], one term after another.

    A loop that adds several terms at a time would be vectorised, and its products would not be fused with the
    additions.
    """
    total = work[u(out)]
    for k in range(count):
        total += sign * (work[u(a + k * a_step)] * work[u(b + k * b_step)])
    work[u(out)] = total


@inline_jit
def factor(work, sizes, target, scale):
    """Factor L D Lᵀ = scale · signal + noise at row `target`, with L below the diagonal, 1 / D on it, and D Lᵀ above
    it.
    """
    _, p, _ = sizes
    rows = rows_of(sizes)
    for j in range(p):
        diagonal = target + j * p + j
        for i in range(j, p):
            upper, lower, entry = target + j * p + i, target + i * p + j, i * p + j
            work[u(upper)] = work[u(scale)] * work[u(rows.signal + entry)] + work[u(rows.seen_noise + entry)]
            add_dot(work, upper, -1.0, target + j * p, 1, target + i, p, j)
            if i == j:
                work[u(diagonal)] = 1 / work[u(diagonal)]
            else:
                work[u(lower)] = work[u(upper)] * work[u(diagonal)]


@inline_jit
def solve_lower(work, sizes, factor, x):
    """Compute L⁻¹ x in place."""
    _, p, _ = sizes
    for a in range(1, p):
        add_dot(work, x + a, -1.0, factor + a * p, 1, x, 1, a)


@inline_jit
def solve(work, sizes, factor, x):
    """Compute (L D Lᵀ)⁻¹ x in place."""
    _, p, _ = sizes
    solve_lower(work, sizes, factor, x)
    for back in range(p):
        a = p - 1 - back
        work[u(x + a)] *= work[u(factor + a * p + a)]
        add_dot(work, x + a, -1.0, factor + (a + 1) * p + a, p, x + a + 1, 1, back)


@inline_jit
def distance(work, sizes, out, factor, x):
    """Compute out = xᵀ(L D Lᵀ)⁻¹x. Replace x by L⁻¹ x."""
    _, p, _ = sizes
    solve_lower(work, sizes, factor, x)
    work[u(out)] = 0.0
    for a in range(p):
        size = work[u(x + a)]
        work[u(out)] += size * size * work[u(factor + a * p + a)]
