"""Pages of attention streams: whatever begins, forks, grows and ends, each stream reads its own tokens, and at the end
all pages are free."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rfa.model.attention.pages import PAGE_KEYS
from rfa.runtime.errors import CapacityError
from rfa.runtime.gpu.pages import PagedContext, PagePool, pages_needed

CAPACITY = 12


def pool_of(capacity: int = CAPACITY) -> PagePool:
    return PagePool((1, 1, 1), capacity, torch.device("cpu"), torch.float32)


@dataclass
class Text:
    """A stream, and what its keys must be."""

    context: PagedContext
    keys: list[float] = field(default_factory=list)

    def read(self) -> list[float]:
        return self.context.pool.keys[0, self.context.rows(0, self.context.position), 0, 0].tolist()


@dataclass
class Texts:
    """A pool, the texts in it, and numbers that are written once each."""

    pool: PagePool = field(default_factory=pool_of)
    texts: list[Text] = field(default_factory=list)
    numbers: count = field(default_factory=lambda: count(1))

    def begin(self, capacity: int, forks: int, common: int) -> None:
        before = self.pool.in_use
        try:
            self.texts.append(Text(PagedContext(self.pool, capacity, forks, min(common, capacity))))
        except CapacityError:
            assert before + pages_needed(capacity, forks, min(common, capacity)) > CAPACITY
            assert self.pool.in_use == before

    def grow(self, which: int, tokens: int) -> None:
        text = self.texts[which % len(self.texts)]
        before = list(text.context.pages)
        try:
            text.context.reserve(tokens)
        except CapacityError:
            assert text.context.pages == before
            return
        rows = text.context.rows(text.context.position, text.context.position + tokens)
        new = [float(next(self.numbers)) for _ in range(tokens)]
        for part in (self.pool.keys, self.pool.values):
            part[0, rows, 0, 0] = torch.tensor(new)
        text.context.position += tokens
        text.keys += new

    def fork(self, which: int) -> None:
        text = self.texts[which % len(self.texts)]
        before = self.pool.in_use
        try:
            self.texts.append(Text(text.context.fork(), list(text.keys)))
        except CapacityError:
            assert self.pool.in_use == before

    def end(self, which: int) -> None:
        self.texts.pop(which % len(self.texts)).context.release()

    def check(self) -> None:
        for text in self.texts:
            assert text.read() == text.keys
            assert torch.equal(self.pool.keys, self.pool.values)
        held = {page for text in self.texts for page in text.context.pages}
        reserved = [page for text in self.texts for own in text.context._fork_pages for page in own]
        assert not held & set(reserved) and len(set(reserved)) == len(reserved)
        assert self.pool.in_use == len(held) + len(reserved)


CAPACITIES = st.integers(1, 4 * PAGE_KEYS)
STEPS = st.one_of(
    st.tuples(st.just("begin"), CAPACITIES, st.integers(0, 3), CAPACITIES),
    st.tuples(st.just("grow"), st.integers(0, 9), st.integers(1, 2 * PAGE_KEYS)),
    st.tuples(st.just("fork"), st.integers(0, 9)),
    st.tuples(st.just("fork"), st.integers(0, 9)),
    st.tuples(st.just("end"), st.integers(0, 9)),
)


@given(st.lists(STEPS, max_size=25))
def test_any_order_leaves_the_pool_whole_and_every_text_its_own(steps: list[tuple]) -> None:
    state = Texts()
    for name, *numbers in steps:
        if state.texts or name == "begin":
            getattr(state, name)(*numbers)
        state.check()
    for _ in list(state.texts):
        state.end(0)
    assert state.pool.in_use == 0 and sorted(state.pool.acquire(CAPACITY)) == list(range(CAPACITY))


def test_full_pages_are_there_once_and_the_last_one_is_copied() -> None:
    prompt, capacity, forks = 2 * PAGE_KEYS + 5, 2 * PAGE_KEYS + 70, 3
    state = Texts()
    state.begin(capacity, forks, prompt)
    assert state.pool.in_use == pages_needed(capacity, forks, prompt) == 4 + forks * 2
    state.grow(0, prompt)
    for _ in range(forks):
        state.fork(0)
    assert state.pool.in_use == 4 + forks * 2, "forks took pages beyond those that were reserved"
    first, *others = (text.context.pages for text in state.texts)
    assert all(pages[:2] == first[:2] and pages[2] not in first for pages in others)
    state.grow(1, 65)
    state.check()
    state.end(0)  # whose pages the others go on with
    state.grow(1, 3)
    state.check()


def test_a_fork_whose_copy_fails_keeps_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the device's has no free memory; the one that it comes from still has its own."""

    def fail(*_: list[int]) -> None:
        raise torch.OutOfMemoryError

    pool = pool_of()
    context = PagedContext(pool, 2 * PAGE_KEYS, 2, PAGE_KEYS + 1)
    context.position = PAGE_KEYS + 1
    reserved = pool.in_use
    monkeypatch.setattr(pool, "copy", fail)
    with pytest.raises(CapacityError, match="has no free memory"):
        context.fork()
    assert pool.in_use == reserved - 1 and len(context.pages) == 2
    context.release()
    assert pool.in_use == 0
