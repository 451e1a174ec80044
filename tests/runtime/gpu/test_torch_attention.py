"""Steps of attention streams equal those of single streams, bit for bit, whatever the padding and the other streams.

The GPU kernels run in Triton's interpreter. test_torch_cuda.py tests CUDA graphs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("the kernels are defined for the GPU that is here", allow_module_level=True)

from rfa.model import draw as drawing
from rfa.model import ragged as ragged_module
from rfa.model.attention.pages import PAGE_KEYS
from rfa.model.packed import Packed
from rfa.model.ragged import RaggedDecoder
from rfa.model.ragged_layout import Ragged
from rfa.runtime.gpu.attention import PagedStepRunner
from rfa.runtime.gpu.draw import TokenDraw
from rfa.runtime.gpu.pages import PagedContext, PagePool
from rfa.runtime.text.sampling import Choice, DrawnToken, Draws
from tests.graph_memory import LaunchedGraphs
from tests.model.test_ragged import ATTENTION, WIDTH, decoder_of, tokens_of
from tests.model.test_ragged import noise_of as normal
from tests.nodes import Nodes

VOCABULARY, CPU = 61, torch.device("cpu")
# Kernels, copies and memsets of a layer; beside them the embedding, the flags, the logits with what is told of a row,
# the draw's three, a copy from and one to the host. At most, with as many layers as the paper's model.
LAYER_NODES, OTHER_NODES, MOST_NODES = 8, 8, 60
LAYERS, PAPER_LAYERS = 2, 6
# Tokens of each stream before the steps: a page that ends with the first one, one that has room, two pages, nothing.
BEFORE = (PAGE_KEYS - 1, 5, PAGE_KEYS + 3, 1)
STEPS = 2
CHOICES = [Choice(0.8, uniform=0.3, top=3, with_latent=True), *[Choice(with_latent=True, top=61)] * 3]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ragged_module, drawing):
        monkeypatch.setattr(module, "is_on_gpu", lambda _: True)


class Streams:
    """A model's streams in a pool of their own, with keys of their own; nothing that was not written may be read."""

    def __init__(self, ragged: RaggedDecoder, which: Sequence[int]) -> None:
        self.ragged, self.which = ragged, list(which)
        self.pool = PagePool((2, 2, WIDTH), 8, CPU, ragged.cache_dtype)
        for part in self.pool.rows:
            part.fill_(torch.nan)
        self.contexts = [PagedContext(self.pool, BEFORE[index] + STEPS) for index in which]
        for index, context in zip(which, self.contexts, strict=True):
            draw = torch.Generator().manual_seed(index)
            for part in self.pool.rows:
                held = part[:, context.rows(0, BEFORE[index])]
                part[:, context.rows(0, BEFORE[index])] = torch.randn(held.shape, generator=draw).to(part.dtype)
            context.position = BEFORE[index]

    @torch.no_grad()
    def extend(self, pieces: Sequence[Sequence[int]], noise: torch.Tensor) -> Any:
        ragged = Ragged.of(pieces, [context.position for context in self.contexts], CPU)
        pages = [context.table() for context in self.contexts]
        found = self.ragged.extend_and_check(ragged, pages, *self.pool.rows, noise)
        for context, piece in zip(self.contexts, pieces, strict=True):
            context.position += len(piece)
        return found

    def runner(self, size: int, longest: int = 2, memory: Any = None) -> PagedStepRunner:
        return PagedStepRunner(self.ragged, self.pool, size, longest, VOCABULARY, memory)

    def given(self, step: int) -> tuple[list[int], np.ndarray, Draws]:
        """Tokens, noise and what is drawn, of each stream the same in any company."""
        tokens, noise = tokens_of([1] * len(BEFORE), 10 + step), normal(len(BEFORE)) * (step + 1)
        choices = [CHOICES[index] for index in self.which]
        return [tokens[i][0] for i in self.which], noise[self.which].numpy(), Draws(choices, np.float32(1.3))

    def steps(self, size: int, longest: int = 2, count: int = STEPS) -> list[list[str]]:
        runner, found = self.runner(size, longest), []
        for step in range(count):
            tokens, noise, draws = self.given(step)
            drawn, finite = runner.draw(self.contexts, tokens, noise, draws)
            assert finite.tolist() == [True] * len(tokens)
            found.append(list(map(digits, drawn)))
            for context in self.contexts:
                context.position += 1
        return found

    def kept(self, index: int) -> list[torch.Tensor]:
        context = self.contexts[index]
        return [part[:, context.rows(0, context.position)] for part in self.pool.rows]


def digits(drawn: DrawnToken) -> str:
    """All that is told of a token, digit for digit."""
    with np.printoptions(threshold=10**6, floatmode="unique"):
        return repr(drawn)


def test_steps_have_the_bits_of_pieces_of_one_token() -> None:
    """`extend_and_check` reads prompts, and its numbers are held to the eager code."""
    ragged = RaggedDecoder(decoder_of(ATTENTION[0]))
    ours, theirs = (Streams(ragged, (0, 1)) for _ in range(2))
    found = ours.steps(4)
    places = Packed(TokenDraw.input_fields(2), CPU)
    draw = TokenDraw(2, VOCABULARY, places, CPU)
    for step in range(STEPS):
        tokens, noise, draws = theirs.given(step)
        output, is_finite = theirs.extend([[token] for token in tokens], torch.from_numpy(noise))
        draw.set_inputs(draws)
        places.send()
        draw.compute(output, is_finite, is_filtered=draws.are_filtered)
        drawn, _ = draw.read(draws, output)
        assert found[step] == list(map(digits, drawn))
    for index in range(2):
        assert all(map(torch.equal, ours.kept(index), theirs.kept(index)))


def test_a_row_has_its_bits_in_any_company_and_beside_any_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 16 bits, where what the distances of keys tell comes from a table."""
    monkeypatch.setattr("rfa.model.attention.pages.LEAST_DISTANCES", 4 * PAGE_KEYS)
    ragged = RaggedDecoder(decoder_of(ATTENTION[0], torch.bfloat16))
    together, alone = Streams(ragged, (2, 0)), Streams(ragged, (0,))
    many = together.steps(4, count=1)
    assert alone.steps(1, longest=4, count=1) == [row[1:] for row in many]
    assert all(map(torch.equal, alone.kept(0), together.kept(1)))


def test_padding_touches_a_page_that_nobody_reads() -> None:
    streams = Streams(RaggedDecoder(decoder_of(ATTENTION[0])), (0, 1))
    before = [part.clone() for part in streams.pool.rows]
    tokens, noise, draws = streams.given(0)
    streams.runner(4, memory=LaunchedGraphs()).draw(streams.contexts, tokens, noise, draws)
    written = {int(context.rows(context.position, context.position + 1)) for context in streams.contexts}
    for part, earlier in zip(streams.pool.rows, before, strict=True):
        changed = (part.nan_to_num() != earlier.nan_to_num()).flatten(2).any(2).any(0).nonzero()[:, 0].tolist()
        scratch = [row for row in changed if row // PAGE_KEYS == streams.pool.scratch_page]
        assert scratch and set(changed) - set(scratch) == written
    assert streams.pool.scratch_page not in streams.pool.acquire(streams.pool.capacity - streams.pool.in_use)


@pytest.mark.filterwarnings(
    "ignore:(invalid value|All-NaN)"
)  # of numpy, in the interpreter's place of the draw's kernel
def test_a_row_that_is_not_finite_is_alone_with_it() -> None:
    ragged = RaggedDecoder(decoder_of(ATTENTION[0]))
    streams, other = Streams(ragged, (0, 1)), Streams(ragged, (0,))
    (token, _), noise, draws = streams.given(0)
    drawn, finite = streams.runner(2).draw(streams.contexts, [token, VOCABULARY], noise, draws)
    assert finite.tolist() == [one.is_finite for one in drawn] == [True, False]
    expected, _ = other.runner(1).draw(other.contexts, *other.given(0))
    assert digits(drawn[0]) == digits(expected[0])


def test_a_step_is_few_launches_and_the_same_whatever_it_is_given() -> None:
    """A graph knows no number of the host: neither how many keys there are nor of how many streams."""
    seen = []
    streams = Streams(RaggedDecoder(decoder_of(ATTENTION[0])), (0, 1))
    runner = streams.runner(2)
    for count in (1, 2):
        tokens, noise, draws = streams.given(count)
        choices = Draws([Choice() for _ in range(count)], draws.calibration)
        with Nodes() as nodes:
            runner.draw(streams.contexts[:count], tokens[:count], noise[:count], choices)
        # Filling unwritten memory is not a launch of the step.
        seen.append([[name for name in nodes.operators if "fill_" not in name], nodes.launches])
    assert seen[0] == seen[1]
    operators, launches = seen[0]
    assert not [name for name in operators if "_local_scalar_dense" in name or "nonzero" in name]
    assert len(operators) + len(launches) == LAYER_NODES * LAYERS + OTHER_NODES, seen[0]
    assert LAYER_NODES * PAPER_LAYERS + OTHER_NODES <= MOST_NODES
