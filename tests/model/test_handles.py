"""What compiled code opens is what was handed over, whatever it is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("numba")
import numba

from rfa.model.handles import Handle, opened


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
