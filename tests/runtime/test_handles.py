"""What compiled code opens is what was handed over, whatever it is made of."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from rfa.runtime.handles import Handle, opened


class Inner(NamedTuple):
    values: Any
    flags: Any
    share: float
    is_on: bool
    count: int


class Outer(NamedTuple):
    inner: Inner
    deep: Any


@numba.njit
def read(handle: Any) -> Any:
    content = opened(handle)
    inner, deep = content.inner, content.deep
    return inner.values.copy(), inner.flags[1], inner.share, inner.is_on, inner.count, deep.shape, deep[1, 2, 3]


@numba.njit
def write(handle: Any, value: float) -> None:
    opened(handle).inner.values[1, 2] = value


def content() -> Outer:
    deep = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    return Outer(Inner(np.arange(6.0).reshape(2, 3), np.array([True, False]), -2.5, True, -7), deep)


def test_everything_is_read_as_it_is() -> None:
    given = content()
    values, flag, share, is_on, count, shape, number = read(Handle(given))
    np.testing.assert_array_equal(values, given.inner.values)
    assert (flag, share, is_on, count, shape, number) == (False, -2.5, True, -7, (2, 3, 4), 23.0)


def test_arrays_are_the_same_and_not_copies() -> None:
    given = content()
    handle = Handle(given)
    write(handle, 8.5)
    assert given.inner.values[1, 2] == 8.5
    given.inner.values[0, 0] = 3.0
    assert read(handle)[0][0, 0] == 3.0


def test_a_handle_keeps_what_it_points_to() -> None:
    handle = Handle(content())
    crowd = [np.full((2, 3), 9.0) for _ in range(1000)]
    assert read(handle)[0][1, 1] == 4.0 and len(crowd) == 1000


@pytest.mark.parametrize("wrong", [(np.arange(6).reshape(2, 3).T,), (np.arange(6)[::2],), ("text",), (None,)])
def test_what_has_gaps_or_is_no_number_is_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        Handle(wrong)


Pair = namedtuple("Pair", "one other")


@numba.njit
def sum_of(handle: Any) -> float:
    pair = opened(handle)
    return opened(pair.one)[0].sum() + opened(pair.other)[0].sum()


def test_handles_of_handles_are_opened_one_by_one() -> None:
    one, other = Handle((np.arange(3.0),)), Handle((np.ones((2, 2)),))
    assert sum_of(Handle(Pair(one, other))) == 7.0
    assert sum_of(Handle(Pair(other, one))) == 7.0


def test_what_is_of_another_form_is_of_another_type() -> None:
    given = [
        (np.zeros(2),), (np.zeros((2, 2)),), (np.zeros(2, np.float32),), (np.zeros(2), 1), (np.zeros(2), 1.0),
        (np.zeros(2), True), ((np.zeros(2),),), Pair(Handle((1,)), Handle((1.0,))),
    ]  # fmt: skip
    kinds = [Handle(one).kind for one in given]
    assert len(set(kinds)) == len(given)
    assert [Handle(one).kind for one in given[:-1]] == kinds[:-1]
