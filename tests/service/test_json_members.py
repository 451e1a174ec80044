"""A name twice in an object is refused wherever it is, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rfa.service.body import decode_json
from rfa.service.errors import InvalidRequest
from rfa.service.json_members import SEARCHED_BYTES

# Names that look like JSON, and such as are one name in two spellings.
NAMES = st.sampled_from(["a", "b", ":", '":', "\\", '\\":', "é", "a:1", "[", "{}"])
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, ":", '{"a":1,"a":2}', '\\"a":', "x\\"])


class Pairs(list[tuple[str, Any]]):
    """An object that may have a name twice."""


def written(value: Any, draw_ascii: bool) -> str:
    if isinstance(value, Pairs):
        members = (f"{json.dumps(k, ensure_ascii=draw_ascii)} : {written(v, draw_ascii)}" for k, v in value)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(written(item, draw_ascii) for item in value) + "]"
    return json.dumps(value, ensure_ascii=draw_ascii)


def doubled(value: Any) -> set[str]:
    """Names that are in one object twice."""
    if isinstance(value, Pairs):
        names = [name for name, _ in value]
        return {name for name in names if names.count(name) > 1}.union(*(doubled(child) for _, child in value))
    return set().union(*map(doubled, value)) if isinstance(value, list) else set()


DOCUMENTS = st.recursive(
    LEAVES,
    lambda children: st.lists(children, max_size=3) | st.lists(st.tuples(NAMES, children), max_size=4).map(Pairs),
    max_leaves=12,
)


@given(DOCUMENTS, st.booleans(), st.booleans(), st.booleans())
def test_what_is_twice_is_found_and_nothing_else(value: Any, draw_ascii: bool, is_text: bool, is_counted: bool) -> None:
    text = written(value, draw_ascii)
    given_text = text if is_text else text.encode()
    members = count(value) if is_counted else None
    if not (names := doubled(value)):
        assert decode_json(given_text, "The body", members) == json.loads(text)
        return
    with pytest.raises(InvalidRequest) as refused:
        decode_json(given_text, "The body", members)
    cleaned = {"".join(c if c.isalnum() or c in "_-" else "?" for c in name) for name in names}
    assert refused.value.code == "duplicate" and refused.value.param in cleaned
    assert refused.value.message == f"The body contains {refused.value.param} twice in one object; remove one of them."


def count(value: Any) -> int:
    if isinstance(value, Pairs):
        return len(value) + sum(count(child) for _, child in value)
    return sum(map(count, value)) if isinstance(value, list) else 0


def test_in_a_long_text_it_is_refused_without_its_name() -> None:
    text = b'{"a": 1, "b": "' + b"x" * SEARCHED_BYTES + b'", "a": 2}'
    with pytest.raises(InvalidRequest, match="The body contains a member twice in one object") as refused:
        decode_json(text, "The body")
    assert refused.value.param is None
