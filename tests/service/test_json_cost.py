"""What a JSON text would cost, against a walk through what it decodes to; and names that it has twice."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rfa.service.body import decode_json
from rfa.service.errors import InvalidRequest
from rfa.service.json_cost import JsonCost, JsonLimits, body_limits
from rfa.service.json_members import SEARCHED_BYTES
from rfa.service.schemas.filter_requests import FilterRequest
from rfa.service.schemas.openai import CompletionRequest
from rfa.service.schemas.text_requests import GenerateRequest
from rfa.service.setting_groups import LimitSettings

ANYTHING = JsonLimits(depth=10**6, values=10**9, containers=10**9, strings=10**9, members=10**9)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.text('ab\\"[]{},:\n\u00e9\U0001f600', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a\\"[{:,', max_size=4), inner, max_size=4),
    max_leaves=20,
)


def containers(document: Any) -> Iterator[tuple[Any, int]]:
    """Arrays and objects with their depth."""
    stack = [(document, 1)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, (list, dict)):
            yield value, depth
            stack += [(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)]


def strings(document: Any) -> int:
    if isinstance(document, str):
        return 1
    if isinstance(document, dict):
        return len(document) + sum(map(strings, document.values()))
    return sum(map(strings, document)) if isinstance(document, list) else 0


def is_refused(text: bytes, pieces: int = 1, **limits: int) -> str | None:
    """The code of the refusal."""
    cost = JsonCost(JsonLimits(**{**ANYTHING.__dict__, **limits}), "The body")
    size = -(-len(text) // pieces) or 1
    try:
        for start in range(0, len(text), size):
            cost.feed(text[start : start + size])
    except InvalidRequest as error:
        return error.code
    return None


@given(DOCUMENTS, st.integers(1, 40), st.booleans())
def test_counts_are_those_of_the_decoded_document(document: Any, pieces: int, is_ascii: bool) -> None:
    text = json.dumps(document, ensure_ascii=is_ascii).encode()
    found = list(containers(document))
    facts = {
        "depth": max((depth for _, depth in found), default=0),
        "containers": len(found),
        "strings": strings(document),
        "members": sum(len(value) for value, _ in found if isinstance(value, dict)),
    }
    for name, fact in facts.items():
        assert is_refused(text, pieces, **{name: fact}) is None
        if fact:
            expected = "too_deep" if name == "depth" else "too_many_values"
            assert is_refused(text, pieces, **{name: fact - 1}) == expected
    items = sum(max(1, len(value)) for value, _ in found) + 1
    assert is_refused(text, pieces, values=items) is None


@pytest.mark.parametrize(
    "text",
    [b'"' + b"\\" * 2 * n + b'", [[[[' for n in (1, 2, 3)]
    + [b'"' + b"\\" * (2 * n + 1) + b'"[[[["' for n in (0, 1, 2)],
)
@pytest.mark.parametrize("pieces", [1, 2, 3, 5, 99])
def test_escapes_are_read_across_pieces(text: bytes, pieces: int) -> None:
    closes = text.count(b"\\") % 2 == 0
    assert (is_refused(text, pieces, depth=3) == "too_deep") is closes


@pytest.mark.parametrize("junk", [b"]]]]{{", b'"', b"\\", b'\\"[', b"\xff\xfe[", b"[" * 10, b'"[[[['])
def test_what_is_no_json_is_counted_as_well(junk: bytes) -> None:
    assert is_refused(junk, depth=9) == ("too_deep" if junk == b"[" * 10 else None)


LEGAL: dict[str, tuple[type[BaseModel], bytes]] = {
    "short integers": (CompletionRequest, b'{"prompt":[' + b"300," * 240_000 + b"1]}"),
    "observations": (FilterRequest, b'{"observations":[' + b"[300]," * 9_990 + b"null]}"),
    "one text": (GenerateRequest, orjson.dumps({"inputs": "a" * 1_900_000})),
    "a text with one escape": (GenerateRequest, b'{"inputs":"\\ud83d\\ude00' + b"a" * 1_900_000 + b'"}'),
    "texts": (CompletionRequest, orjson.dumps({"prompt": ["\u6f22" * 2_000] * 256})),
}


def _allocated(model: type[BaseModel], text: bytes) -> tuple[int, int]:
    """Bytes of a decoded and validated body: with its document, and without it."""
    tracemalloc.start()
    try:
        # Not the peaks: the decoder reserves 12 bytes for each one of the text, and uses 16 for each value.
        document = orjson.loads(text)
        body = model.model_validate(document)
        both, _ = tracemalloc.get_traced_memory()
        del document
        validated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert body
    return both, validated


@pytest.mark.parametrize("pieces", [pytest.param(1, marks=pytest.mark.slow), 7])
@pytest.mark.parametrize("case", LEGAL)
def test_a_legal_body_takes_no_more_than_is_leased(case: str, pieces: int) -> None:
    model, text = LEGAL[case]
    settings = LimitSettings()
    cost = JsonCost(body_limits(settings), "The body")
    for start in range(0, len(text), len(text) // pieces):
        cost.feed(text[start : start + len(text) // pieces])
    # Other tests' threads may allocate meanwhile, which tracemalloc counts as well: the least of three runs.
    runs = [_allocated(model, text) for _ in range(3)]
    both, validated = (min(bytes_) for bytes_ in zip(*runs, strict=True))
    assert both <= cost.counts.decoding_bytes() <= body_limits(settings).most(2_000_000).decoding_bytes()
    assert validated <= cost.counts.validated_bytes() <= cost.counts.decoding_bytes()


def test_every_observation_may_have_an_input_and_a_bias() -> None:
    settings = LimitSettings(max_observations=2_000)
    rows = [[1.0, 2.0]] * settings.max_observations
    body = {"model": "linear", "observations": rows, "input": rows, "bias": rows}
    JsonCost(body_limits(settings), "The body").feed(json.dumps(body).encode())
    with pytest.raises(InvalidRequest, match="arrays"):
        JsonCost(body_limits(settings), "The body").feed(json.dumps({**body, "more": rows}).encode())


# Names that are twice in an object.


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


WITH_PAIRS = st.recursive(
    LEAVES,
    lambda children: st.lists(children, max_size=3) | st.lists(st.tuples(NAMES, children), max_size=4).map(Pairs),
    max_leaves=12,
)


@given(WITH_PAIRS, st.booleans(), st.booleans(), st.booleans())
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
