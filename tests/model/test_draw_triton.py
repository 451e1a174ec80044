"""The kernels that draw tokens: against float64, where what is drawn is certain, and against the reference.

It runs on a GPU where there is one, else in Triton's interpreter.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rfa.model import draw as drawing
from rfa.model.draw import NUMBERS, Distribution, Drawn, draw_by_torch
from rfa.model.language import StepOutput

pytest.importorskip("triton")

from rfa.model import draw_triton
from rfa.model.draw_triton import draw_by_kernel

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = float(np.finfo(np.float32).eps)
# An exponential of the kernel and one of torch, each off by an ulp or two, and their arguments' rounding.
EXPONENTIALS = 5 * EPS


def wide(shares: np.ndarray) -> np.ndarray:
    """Those of which a bound may be in the middle: hundreds of times what float32 moves it by."""
    found: np.ndarray = np.flatnonzero(shares > min(1e-4, shares.max() / 2))
    return found


class Row:
    """A row that must draw one token: bounds lie in the middle between what float64 has on either side."""

    def __init__(self, vocabulary: int, draw: np.random.Generator, *, is_tied: bool, top_k: bool, top_p: bool) -> None:
        logits = 3 * draw.standard_normal(vocabulary)
        self.logits = (np.round(logits) if is_tied else logits).astype(np.float32)
        self.temperature = np.float32(10 ** draw.uniform(-1, 1))
        exponents = (self.logits - self.logits.max()).astype(np.float64) / self.temperature
        self.last_place = int(vocabulary ** draw.uniform(0, 0.9)) if top_k and vocabulary > 1 else vocabulary - 1
        self.last_place = min(self.last_place, vocabulary - 1)
        kept = exponents >= np.sort(exponents)[::-1][self.last_place]
        weights = np.where(kept, np.exp(exponents), 0)
        order = np.argsort(-self.logits, kind="stable")
        self.top_p = math.inf
        if top_p:
            share = np.cumsum(weights[order]) / weights.sum()
            place = int(draw.choice(wide(np.diff(share, prepend=0))))
            self.top_p = float(share[place] - weights[order[place]] / weights.sum() / 2)
            weights[order[place + 1 :]] = 0
        total = np.cumsum(weights) / weights.sum()
        self.token = int(draw.choice(wide(weights / weights.sum())))
        self.uniform = float(total[self.token] - weights[self.token] / weights.sum() / 2)


def rows_of(vocabulary: int, count: int) -> list[Row]:
    """Ties, none of k and p, one, both in turn, and a row that is greedy."""
    draw = np.random.default_rng(vocabulary)
    rows = [
        Row(vocabulary, draw, is_tied=i % 3 == 0, top_k=i % 4 in (1, 3), top_p=i % 4 in (2, 3)) for i in range(count)
    ]  # fmt: skip
    rows[-1].temperature, rows[-1].last_place = np.float32(1), 0
    rows[-1].top_p, rows[-1].uniform, rows[-1].token = math.inf, 0.0, int(rows[-1].logits.argmax())
    return rows


def step_inputs(rows: list[Row]) -> tuple[StepOutput, torch.Tensor, Distribution]:
    """As serving lays them: nothing is aligned."""
    size = len(rows)

    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        values = torch.tensor([0, *(getattr(row, name) for row in rows)], dtype=dtype)
        return values.to(DEVICE)[1:]

    output = StepOutput(
        torch.from_numpy(np.stack([row.logits for row in rows])).to(DEVICE),
        torch.linspace(-1, 1, size, device=DEVICE),
        torch.linspace(-9, 9, size * 15, device=DEVICE).reshape(size, 3, 5),
    )
    given = Distribution(
        column("top_p", torch.float64),
        column("uniform", torch.float64),
        column("last_place", torch.int64),
        column("temperature", torch.float32),
        torch.tensor([1.3], device=DEVICE),
    )
    return output, torch.ones(size, device=DEVICE), given


def by_kernel(rows: list[Row], *, is_filtered: bool = True) -> Drawn:
    output, slots_finite, given = step_inputs(rows)
    drawn = Drawn.empty(len(rows), DEVICE)
    draw_by_kernel(output, slots_finite, given, drawn, is_filtered=is_filtered)
    return drawn


def assert_draws_match(vocabulary: int, count: int) -> None:
    rows = rows_of(vocabulary, count)
    found, expected = by_kernel(rows), Drawn.empty(count, DEVICE)
    draw_by_torch(*step_inputs(rows), expected)
    assert found.tokens.tolist() == expected.tokens.tolist() == [row.token for row in rows]
    assert torch.equal(found.numbers, expected.numbers)
    assert found.numbers[NUMBERS.index("is_finite")].tolist() == [1.0] * count
    assert float((found.sums.double() / expected.sums.double() - 1).abs().max()) <= EXPONENTIALS


@pytest.mark.parametrize(
    ("vocabulary", "count"),
    [(1, 1), (2, 4), (7, 7), (300, 7), (4_097, 4), pytest.param(50_257, 7, marks=pytest.mark.slow)],
)
def test_tokens_are_those_that_are_certain(vocabulary: int, count: int) -> None:
    assert_draws_match(vocabulary, count)


def test_a_row_may_have_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_triton, "LARGEST_BLOCK", 32)
    assert_draws_match(150, 6)


def same(found: Drawn, expected: Drawn) -> bool:
    return all(torch.equal(part, other) for part, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("edges", "bits"), [(1, 2), (4, 1), (32, 3)])
def test_no_edge_and_no_candidate_of_the_search_decides(edges: int, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits with all of a row in the list, by halves, and by eight at once."""
    rows = rows_of(61, 7)
    plain = by_kernel(rows)
    monkeypatch.setattr(draw_triton, "EDGES", edges)
    monkeypatch.setattr(draw_triton, "WAY_BITS", bits)
    assert same(by_kernel(rows), plain)


def test_a_gpu_draws_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """And others by the reference."""
    output, slots_finite, given = step_inputs(rows_of(7, 1))
    drawn, seen = Drawn.empty(1, DEVICE), []
    monkeypatch.setattr(draw_triton, "draw_by_kernel", lambda *_, is_filtered: seen.append("kernel"))
    monkeypatch.setattr(drawing, "draw_by_torch", lambda *_: seen.append("torch"))
    for is_on_gpu in (True, False):
        monkeypatch.setattr(drawing, "is_on_gpu", lambda _, answer=is_on_gpu: answer)
        drawing.draw(output, slots_finite, given, drawn, is_filtered=True)
    assert seen == ["kernel", "torch"]


@pytest.mark.parametrize("vocabulary", [2, 4_096, 4_097, 50_257])
def test_sums_of_weights_do_not_overflow(vocabulary: int) -> None:
    sums = drawing.integer_weights(torch.zeros(vocabulary)).sum()
    assert 2**61 <= int(sums) <= 2**62
