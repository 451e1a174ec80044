"""Pieces of prompts beside padding, in fixed places: they leave what the same tokens leave that are read as they come.

By the kernels of a GPU, in Triton's interpreter; captured in a graph, on one: test_torch_cuda.py.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("the kernels are defined for the GPU that is here", allow_module_level=True)

from rfa.model import ragged as ragged_module
from rfa.model.attention.pages import PAGE_KEYS
from rfa.model.ragged import RaggedDecoder
from rfa.model.ragged_layout import Ragged
from rfa.model.recurrence import slots
from rfa.runtime.gpu.pages import PagedContext, PagePool
from rfa.runtime.gpu.pool import DevicePool
from rfa.runtime.gpu.prompts import PagedPromptRunner, PromptRunners, SlotPromptRunner
from tests.graph_memory import LaunchedGraphs
from tests.model.test_ragged import ATTENTION, RECURRENT, SIZE, WIDTH, decoder_of, small_model, tokens_of

# Of numpy, in the place of a GPU, on the token that is not finite.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|All-NaN)")
CPU = torch.device("cpu")
# Of three streams, of which the second gives what is not finite: a token that there is not.
COUNTS, BEGINS, UNKNOWN = (2, 1, 3), (PAGE_KEYS - 1, 4, 0), 61
PIECES = [tokens_of(COUNTS, 1)[0], [UNKNOWN], tokens_of(COUNTS, 1)[2]]
# Room for one stream more, with a token, and one that is nobody's.
TOKENS, STREAMS = 8, 4
GRAPHS: Any = LaunchedGraphs()


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ragged_module, slots):
        monkeypatch.setattr(module, "is_on_gpu", lambda _: True)


def ragged_of(chosen: list[int]) -> Ragged:
    return Ragged.of([PIECES[index] for index in chosen], [BEGINS[index] for index in chosen], CPU)


def pool_of(ragged: RaggedDecoder) -> tuple[PagePool, list[PagedContext]]:
    """Streams with keys of their own; nothing else may be read."""
    pool = PagePool((2, 2, WIDTH), 6, CPU, ragged.cache_dtype)
    contexts = [PagedContext(pool, begin + count) for begin, count in zip(BEGINS, COUNTS, strict=True)]
    draw = torch.Generator().manual_seed(0)
    for part in pool.rows:
        part.fill_(torch.nan)
        for context, begin in zip(contexts, BEGINS, strict=True):
            part[:, context.rows(0, begin)] = torch.randn(2, begin, 2, WIDTH, generator=draw)
    return pool, contexts


@torch.no_grad()
def test_keys_of_prompts_beside_padding() -> None:
    ragged = RaggedDecoder(decoder_of(ATTENTION[0]))
    pool, contexts = pool_of(ragged)
    finite = PagedPromptRunner(ragged, pool, TOKENS, STREAMS, 3, GRAPHS).read(
        ragged_of([0, 1, 2]), [context.table() for context in contexts]
    )
    assert finite.tolist() == [True, False, True]
    expected, others = pool_of(ragged)
    for index in (0, 2):
        noise = torch.zeros(1, 2, WIDTH)
        _, good = ragged.extend_and_check(ragged_of([index]), [others[index].table()], *expected.rows, noise)
        assert good.tolist() == [1.0]
    ours = [contexts[index].rows(0, BEGINS[index] + COUNTS[index]) for index in (0, 2)]
    for part, right in zip(pool.rows, expected.rows, strict=True):
        assert all(torch.equal(part[:, rows], right[:, rows]) for rows in ours)
        # Of all else only the broken token and the scratch page are written.
        changed = (part.nan_to_num() != right.nan_to_num()).flatten(2).any(2).any(0).nonzero()[:, 0].tolist()
        assert {row // PAGE_KEYS for row in changed} <= {pool.scratch_page, contexts[1].pages[0]}


@torch.no_grad()
def test_slots_after_prompts_beside_padding() -> None:
    ragged, state = RaggedDecoder(decoder_of(RECURRENT[1])), small_model(**SIZE).init_state(1)
    pool = DevicePool(state.means[0].numpy(), state.precisions[0].numpy(), 4, STREAMS, "cpu")
    before = [part.clone() for part in pool.slots]
    sources, targets = np.array([pool.initial_row] * 3), np.array([1, 3, 5])
    finite = SlotPromptRunner(ragged, pool, TOKENS, STREAMS, GRAPHS).read(ragged_of([0, 1, 2]), sources, targets)
    assert finite.tolist() == [True, False, True]
    for index in (0, 2):
        start = (part[:, [pool.initial_row]] for part in before)
        _, *after = ragged.prefill(ragged_of([index]), *start)
        assert all(
            torch.equal(part[:, targets[index]], right[:, 0]) for part, right in zip(pool.slots, after, strict=True)
        )
    kept = np.setdiff1d(np.arange(before[0].shape[1]), [*targets, *pool.padding_rows])
    assert all(torch.equal(part[:, kept], earlier[:, kept]) for part, earlier in zip(pool.slots, before, strict=True))


def test_a_piece_goes_to_the_smallest_runner_that_holds_it() -> None:
    made: list[tuple[int, int]] = []

    def make(tokens: int, streams: int) -> tuple[int, int]:
        made.append((tokens, streams))
        return made[-1]

    runners = PromptRunners(make, 200, 24)
    assert made == [(200, 24), (200, 1), (128, 24), (128, 1), (64, 24), (64, 1)]
    for counts, size in (([1], (64, 1)), ([64], (64, 1)), ([64, 1], (128, 24)), ([129], (200, 1))):
        assert runners.of(Ragged.of(tokens_of(counts, 0), [0] * len(counts), CPU)) == size
    with pytest.raises(ValueError, match="a batch contains 201"):
        runners.of(Ragged.of(tokens_of([201], 0), [0], CPU))
