"""Raw JSON of any shape: never a 5xx, always valid JSON in a documented shape, and the next request is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rfa.service.errors import ErrorReply, RowErrorReply
from rfa.service.schemas.filter_replies import FilterDone, FilterReply, FilterStepReply
from rfa.service.schemas.filter_requests import FilterRequest as FilterBody
from rfa.service.schemas.openai import Completion, CompletionChunk, CompletionRequest, StreamOptions
from rfa.service.schemas.text_replies import GenerateEvent, GenerateReply
from rfa.service.schemas.text_requests import GenerateParameters, GenerateRequest
from tests.service.live import blocking, connected
from tests.service.replies import read

LIMITS: dict[str, Any] = {"max_new_tokens": 100, "max_observations": 50, "max_reply_numbers": 20_000, "workers": 2}
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.floats(-2, 2),
    st.floats(),  # NaN and Infinity become bare words that are no JSON
    st.text(max_size=8),
    st.sampled_from(["", "\x00", "recurrent", "attention", "recite", "mean", "\ud800", "é" * 300, "1", "nan"]),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
sane = {
    "inputs": st.text(max_size=20),
    "max_new_tokens": st.integers(1, 20),
    "observations": st.lists(
        st.none() | st.lists(st.none() | st.floats(-1e12, 1e12), min_size=2, max_size=2), min_size=1, max_size=8
    ),
    "times": st.none() | st.lists(st.floats(-1e15, 1e15), max_size=8).map(sorted),
    "horizon": st.lists(st.floats(1e-3, 1e9), max_size=3),
    "samples": st.integers(0, 4),
    "seed": st.none() | st.integers(0, 2**64 - 1),
    "levels": st.lists(st.sampled_from([0.5, 0.9]), min_size=1, max_size=2),
    "stop": st.lists(st.text(min_size=1, max_size=3), max_size=3),
    "temperature": st.floats(0, 100),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(1, 300),
    "n": st.integers(1, 4),
    "top_n_tokens": st.integers(0, 32),
    "stream": st.booleans(),
    "smooth": st.booleans(),
    "mode": st.sampled_from(["recurrent", "attention"]),
    "decode": st.sampled_from(["recurrent", "attention"]),
    "prompt": st.none()
    | st.text(max_size=20)
    | st.lists(st.integers(0, 260), min_size=1, max_size=20)
    | st.lists(st.text(max_size=20), min_size=1, max_size=4)
    | st.lists(st.lists(st.integers(0, 256), min_size=1, max_size=9), min_size=1, max_size=4),
    "max_tokens": st.none() | st.integers(1, 20),
    "logprobs": st.none() | st.integers(0, 5),
    "echo": st.booleans(),
    "stream_options": st.none()
    | st.fixed_dictionaries({}, optional={name: st.booleans() for name in StreamOptions.model_fields}),
    "suffix": st.sampled_from(["", None, "x"]),
    "logit_bias": st.sampled_from([{}, None, {"1": 1}]),
    "presence_penalty": st.sampled_from([0, 0.0, -0.0, None, False, 1]),
    "watermark": st.sampled_from([False, None, 0]),
    "typical_p": st.sampled_from([1, 1.0, None, True]),
}


def documents(names: list[str], required: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects whose fields are mostly sane, sometimes anything, sometimes not ours."""
    values = {name: st.one_of(*[sane[name]] * 6, anything) if name in sane else anything for name in names}
    optional = {name: value for name, value in values.items() if name != required}
    recorded = st.fixed_dictionaries({required: values[required]}, optional=optional)
    return st.one_of(
        *[recorded] * 5,
        st.builds(lambda a, b: {**a, **b}, recorded, st.dictionaries(st.text(max_size=5), anything, max_size=2)),
    )


parameters = st.fixed_dictionaries(
    {}, optional={name: sane.get(name, anything) for name in GenerateParameters.model_fields}
)
sane_parameters = st.fixed_dictionaries(
    {}, optional={name: values for name, values in sane.items() if name in GenerateParameters.model_fields}
)
generate_bodies = st.one_of(
    documents(list(GenerateRequest.model_fields), "inputs"),
    *(
        st.fixed_dictionaries({"inputs": sane["inputs"], "parameters": each}, optional={"stream": sane["stream"]})
        for each in (parameters, sane_parameters)
    ),
    anything,
)
completion_bodies = st.one_of(
    documents(list(CompletionRequest.model_fields), "prompt"),
    st.fixed_dictionaries(
        {"prompt": sane["prompt"]},
        optional={k: v for k, v in sane.items() if k in set(CompletionRequest.model_fields) - {"prompt", "echo"}},
    ),
    anything,
)
filter_bodies = st.one_of(
    documents(list(FilterBody.model_fields), "observations"),
    st.fixed_dictionaries(
        {"observations": sane["observations"]},
        optional={k: sane[k] for k in ("horizon", "samples", "seed", "levels", "stream", "smooth", "mode")},
    ),
    anything,
)


@pytest.fixture(scope="module")
def post() -> Iterator[Any]:
    """`post(path, body)` of bytes that say that they are JSON."""
    with blocking(connected(**LIMITS)) as ask:
        yield lambda path, body: ask(path, content=body, headers={"content-type": "application/json"})


def refuse_constant(name: str) -> float:
    raise AssertionError(f"the reply holds {name}")


def check(response: httpx.Response, plain: type, *lines: type) -> None:
    """A success in the documented shape, or a 4xx in the one error shape."""
    assert response.status_code in (200, 404, 422), response.text
    if response.status_code != 200:
        error = read(ErrorReply, response.content).error
        assert error.message and len(error.message) < 500
        return
    if response.headers["content-type"] == "application/json":
        json.loads(response.content, parse_constant=refuse_constant)
        read(plain, response.content)
        return
    *steps, last = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    if CompletionChunk in lines:
        assert last == "[DONE]"
        *steps, last = steps
    for line in steps:
        read(RowErrorReply if "error" in json.loads(line) else lines[0], line)
    read(lines[-1], last)
    assert is_terminal(json.loads(last))


def is_terminal(document: dict[str, Any]) -> bool:
    """Whether a stream may end here: a summary, or the usage or the end of a choice of a completion."""
    if "choices" in document:
        return all(choice["finish_reason"] for choice in document["choices"])
    return bool(document.get("done") or document.get("details"))


def encoded(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=True).encode()


SLOW_IS_FINE = settings(
    max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@SLOW_IS_FINE
@given(document=generate_bodies)
def test_generate(post: Any, document: Any) -> None:
    check(post("/generate", encoded(document)), GenerateReply, GenerateEvent)
    after = post("/generate", b'{"inputs": "say |", "parameters": {"max_new_tokens": 3}}')
    assert after.json()["generated_text"] == "the"


@SLOW_IS_FINE
@given(document=generate_bodies)
def test_generate_by_its_other_names(post: Any, document: Any) -> None:
    check(post("/", encoded(document)), GenerateReply, GenerateEvent)
    streamed = post("/generate_stream", encoded(document))
    assert streamed.status_code != 200 or streamed.headers["content-type"].startswith("text/event-stream")
    check(streamed, GenerateReply, GenerateEvent)


@SLOW_IS_FINE
@given(document=completion_bodies)
def test_completions(post: Any, document: Any) -> None:
    check(post("/v1/completions", encoded(document)), Completion, CompletionChunk)
    after = post("/v1/completions", b'{"prompt": ["say |", "|"], "max_tokens": 3, "temperature": 0}')
    assert [choice["text"] for choice in after.json()["choices"]] == ["the", "the"]


@SLOW_IS_FINE
@given(document=filter_bodies)
def test_filter(post: Any, document: Any) -> None:
    check(post("/filter", encoded(document)), FilterReply, FilterStepReply, FilterDone)
    after = post("/filter", b'{"observations": [[1, 2], [3, null]]}')
    assert [step["mean"] for step in after.json()["steps"]] == [[1, 2], [2, 2]]


@SLOW_IS_FINE
@given(body=st.binary(max_size=60) | st.text(alphabet='{}[]",:\\u0d8einputs1-.', max_size=60).map(str.encode))
def test_bytes_that_may_be_no_json(post: Any, body: bytes) -> None:
    for path in ("/generate", "/filter", "/", "/generate_stream", "/v1/completions"):
        assert post(path, body).status_code == 422
