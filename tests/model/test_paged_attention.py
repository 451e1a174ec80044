"""Attention over pages: the numbers of attention over a cache in one piece, bit for bit by the fused kernel before
a GPU's compiler has joined its products and sums.
"""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from rfa.benchmarks.kernels.cases import rfa_inputs
from rfa.model.attention import triton_forward
from rfa.model.attention.call import AttentionCall
from rfa.model.attention.launch import Launch
from rfa.model.attention.pages import PAGE_KEYS, KeyPages, PagedHeads, Pieces, paged_attention
from rfa.model.attention.reference import AttentionResult, attend
from rfa.model.attention.triton import stack_heads
from rfa.model.attention.triton_distant import distances
from rfa.model.attention.triton_forward import forward
from rfa.model.dynamics import Dynamics
from rfa.runtime.text.config import Kernel
from tests.kernels import assert_variants_agree
from tests.rounding import allowed_errors, relative_error

# Keys before the piece, and tokens of it: a prompt from nothing, one token behind many, pages filled to the last key.
SEQUENCES = ((0, 37), (300, 1), (PAGE_KEYS, PAGE_KEYS), (5, 130), (0, 1), (3 * PAGE_KEYS - 1, 1))


Paged = tuple[Tensor, Tensor, Tensor, Dynamics, Pieces, list[tuple[Tensor, Tensor, Tensor]]]


def paged(dtype: torch.dtype, width: int = 32) -> Paged:
    """Queries, pool of keys and of values, and each sequence by itself; free rows of the pool are NaN."""
    draw = torch.Generator("cpu").manual_seed(5)
    totals = [past + own for past, own in SEQUENCES]
    counts = [-(-total // PAGE_KEYS) for total in totals]
    order = torch.randperm(sum(counts) + 3, generator=draw, device="cpu").to(torch.get_default_device())
    dynamics: Dynamics
    alone, queries = [], []
    keys, values = (torch.full((len(order) * PAGE_KEYS, 2, width), torch.nan, dtype=dtype) for _ in range(2))
    table = torch.full((len(SEQUENCES), max(counts)), 2**30, dtype=torch.int32)
    for index, ((_, own), total, count) in enumerate(zip(SEQUENCES, totals, counts, strict=True)):
        inputs = rfa_inputs(1, total, 2, width // 2, dtype=dtype, seed=index)
        dynamics = inputs.dynamics
        pages, order = order[:count], order[count:]
        table[index, :count] = pages
        places = (pages[:, None] * PAGE_KEYS + torch.arange(PAGE_KEYS)).flatten()[:total]
        keys[places], values[places] = inputs.k[0], inputs.v[0]
        queries.append(inputs.q[0, total - own :])
        alone.append((inputs.q[0, total - own :], inputs.k[0], inputs.v[0]))
    starts = [
        torch.tensor([0, *counts], dtype=torch.int64).cumsum(0).to(torch.int32)
        for counts in ([own for _, own in SEQUENCES], totals)
    ]
    pieces = Pieces(*starts, KeyPages(table, sum(totals), max(totals)), max(own for _, own in SEQUENCES))
    return torch.cat(queries), keys, values, dynamics.to(torch.float32), pieces, alone


def paged_call(q: Tensor, keys: Tensor, values: Tensor, dynamics: Dynamics, pieces: Pieces) -> AttentionCall:
    return AttentionCall(
        q[None], keys[None], values[None], stack_heads(dynamics), query_starts=pieces.query_starts,
        key_starts=pieces.key_starts, longest=pieces.longest, with_precision=False,
    )  # fmt: skip


def of(result: AttentionResult, pieces: Pieces, index: int) -> AttentionResult:
    """What a sequence gets; nothing, of a part that was left out."""
    first, end = pieces.query_starts[index : index + 2].tolist()
    return AttentionResult(*(part[first:end] for part in result))


def allowed(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics, kernel: Kernel) -> dict[str, float]:
    """Relative errors that rounding explains, of a piece alone."""

    def eager(dtype: torch.dtype) -> AttentionResult:
        times = torch.arange(len(k), dtype=torch.float64)[None]
        rows = (x[None].to(dtype) for x in (q, k, v))
        return attend(*rows, dynamics.to(dtype), query_times=times[:, -len(q) :], key_times=times, kernel=kernel)

    exact = eager(torch.float64)

    def errors() -> dict[str, float]:
        return {name: relative_error(x, getattr(exact, name)) for name, x in eager(torch.float32)._asdict().items()}

    return allowed_errors(errors, q.dtype)


@pytest.mark.parametrize(
    ("dtype", "kernel", "with_precision"),
    [(torch.float16, "student_t", False), (torch.float32, "student_t", True), (torch.float16, "gaussian", True)],
    ids=str,
)
@pytest.mark.usefixtures("on_the_gpu")
def test_pages_are_read_where_they_lie(dtype: torch.dtype, kernel: Kernel, with_precision: bool) -> None:
    """Each sequence as it is alone in one piece: whatever the order of its pages and its company."""
    assert_pages_are_read_where_they_lie(dtype, kernel, with_precision=with_precision)


def assert_pages_are_read_where_they_lie(dtype: torch.dtype, kernel: Kernel, *, with_precision: bool) -> None:
    q, keys, values, dynamics, pieces, alone = paged(dtype, width=16)
    heads = PagedHeads(stack_heads(dynamics), 16, dtype, kernel, with_precision=with_precision)
    with mock.patch.object(triton_forward, "COLUMN_PROGRAMS", 2 * 2 * len(SEQUENCES)):  # two, each for many blocks
        found = paged_attention(q, keys, values, heads, pieces)
    # What lags tell is worked out once, for more keys than there are.
    again = paged_attention(q, keys, values, heads, pieces)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    held = heads.distances(1)
    assert bool(held) == (kernel == "student_t" and dtype != torch.float32)
    assert heads.distances(pieces.pages.longest) is held
    for index, (own, k, v) in enumerate(alone):
        call = AttentionCall(
            own[None], k[None], v[None], stack_heads(dynamics),
            is_gaussian=kernel == "gaussian", with_precision=with_precision,
        )  # fmt: skip
        out, log_norm, precision = forward(call, out_dtype=torch.float32)
        ours = of(found, pieces, index)._asdict()
        assert ours["precision"].numel() or not with_precision
        expected = {"out": out[0], "log_norm": log_norm[0]} | ({"precision": precision[0]} if with_precision else {})
        assert_variants_agree(ours, expected, partial(allowed, own, k, v, dynamics, kernel))


@pytest.mark.usefixtures("on_the_gpu")
def test_a_block_longer_than_a_page_is_refused() -> None:
    q, keys, values, dynamics, pieces, _ = paged(torch.float32)
    with pytest.raises(ValueError, match="block_n must divide 64, the number of keys in a page, got 128"):
        forward(paged_call(q, keys, values, dynamics, pieces), pages=pieces.pages, blocks=Launch(128, 128, 4, 1))


@pytest.mark.usefixtures("on_the_gpu")
def test_distances_are_made_again_for_longer_sequences_and_too_few_are_refused() -> None:
    q, keys, values, dynamics, pieces, _ = paged(torch.float16, width=16)
    heads = PagedHeads(stack_heads(dynamics), 16, torch.float16, "student_t", with_precision=False)
    first, more = heads.distances(1024), heads.distances(1025)
    marks = first[2]
    assert more[2].shape[1] == 2 * marks.shape[1] and torch.equal(more[2][:, : marks.shape[1]], marks)
    few = distances(stack_heads(dynamics), 16, torch.float16, 200, with_precision=False)
    with pytest.raises(ValueError, match="table of distances"):
        forward(paged_call(q, keys, values, dynamics, pieces), pages=pieces.pages, table=few)


@pytest.mark.usefixtures("on_the_gpu")
def test_a_table_that_finds_no_memory_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, dynamics, _, _ = paged(torch.float16, width=16)
    heads = PagedHeads(stack_heads(dynamics), 16, torch.float16, "student_t", with_precision=False)
    first = heads.distances(1)

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr("rfa.model.attention.triton_distant.distances", full)
        with pytest.raises(torch.OutOfMemoryError):
            heads.distances(1025)
        assert heads.distances(1) is first
    assert heads.distances(1025)[2].shape[1] == 2 * first[2].shape[1]
