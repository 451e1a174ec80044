"""Cases for `tests.soak.api_fuzz`: valid requests with something in them replaced, or bytes that are no request."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.soak.connection import request_bytes

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE")
CONTENT_TYPES = (
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx",
    "application/json; charset=utf-16", "application/json; charset=utf-8", "*/*", "", "APPLICATION/JSON",
)  # fmt: skip
# What is wrong with a request beside its document.
TWISTS = (*["nothing"] * 15, "path", "method", "document", "bytes", "content type")
STRANGE_PATHS = ("/nothing", "/%00", "//filter", "/filter/", "/generate?x=1")
NESTED = 200
# Written into the text as they are; JSON has none of them, or no reader of doubles can hold them.
WORDS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "0x10", "01", "9" * 400, "1." + "0" * 400 + "1")
TEXTS = (
    {
        "inputs": "It was",
        "model": None,
        "parameters": {
            "max_new_tokens": 2, "temperature": 0.8, "top_k": 5, "top_p": 0.9, "do_sample": True, "seed": 3,
            "stop": ["the"], "details": True, "top_n_tokens": 1, "return_full_text": True, "truncate": 4,
            "decode": "recurrent", "latent_noise": 0.1, "n": 1, "return_latents": False, "deadline_ms": 1000,
        },
        "stream": False,
        "state": None,
        "return_state": True,
    },
    {"inputs": "It", "parameters": {"max_new_tokens": 2, "decode": "attention", "n": 2}, "stream": True},
)  # fmt: skip
# Sessions at step 1 that later documents name, and what begins them; a second time that is a 409.
MERGED_SESSIONS = ("merge-one", "merge-two")
BEGINNINGS = tuple(
    {"model": "linear", "observations": [[1.0, float(i)]], "return_state": f"session:{name}"}
    for i, name in enumerate(MERGED_SESSIONS)
)
# Valid documents of each POST route.
DOCUMENTS: Mapping[str, Sequence[Any]] = {
    "/": TEXTS,
    "/generate": TEXTS,
    "/generate_stream": TEXTS,
    "/filter": (
        {
            "model": "linear", "times": [0.0, 0.5], "observations": [[1.0, 0.2], [None, 0.1]], "noise": [1.0, None],
            "levels": [0.5, 0.9], "horizon": [0.1], "samples": 2, "seed": 1, "mode": "recurrent", "smooth": False,
            "deadline_ms": 1000, "stream": False, "state": None, "return_state": True,
        },
        {"observations": [[1.0, 0.2], None], "smooth": True, "stream": True},
    ),
    "/state/merge": (
        {
            "model": "linear", "states": [f"session:{name}" for name in MERGED_SESSIONS], "method": "precision",
            "prior": None, "t": 9.5, "levels": [0.9], "horizon": [0.1], "return_state": True,
        },
        {"states": [f"session:{name}@1" for name in MERGED_SESSIONS], "return_state": False},
    ),
    "/v1/completions": (
        {
            "model": "books", "prompt": "It was", "max_tokens": 2, "temperature": 0.7, "top_p": 0.9, "n": 1,
            "stream": False, "logprobs": 1, "echo": False, "stop": ["the"], "seed": 1, "user": "u", "latent_noise": 0.1,
            "decode": "recurrent", "deadline_ms": 1000, "truncate_prompt_tokens": 4, "presence_penalty": 0,
            "return_latents": True,
        },
        {"prompt": ["It", "She"], "max_tokens": 1, "stream": True, "stream_options": {"include_usage": True}},
        {"prompt": [[5, 6], [7]], "max_tokens": 2, "echo": True, "n": 2, "best_of": 2, "suffix": None, "top_k": 3},
    ),
}  # fmt: skip
FRAMES = (
    {
        "model": "linear", "levels": [0.9], "horizon": [0.1], "samples": 1, "seed": 1, "state": None,
        "return_state": True, "state_every": 1,
    },
    {"t": 0.5, "y": [1.0, None], "noise": 1.0},
)  # fmt: skip


@dataclass(frozen=True)
class RawRequest:
    """A request as bytes, and what it was meant for."""

    method: str
    path: str
    encoded: bytes

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.encoded[-400:]!r}"


@dataclass(frozen=True)
class Frames:
    """Frames of a live stream."""

    texts: tuple[str | bytes, ...]


numbers = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**53, 2**63, 2**64 - 1, 2**64, 10**400, -1, 0]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1e12, 1.0000001e12, 1e15, 1e308, 5e-324, -0.0, 0.9, 1.0]),
)
texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "\0", "\ud800", "\U0010ffff", "🙂" * 50, "null", "session:a", "session:", "session:a@1", "v1.", "v1.AAAA",
         "linear", "books", "\u202e\u0301" * 20, "x" * 5000, "' OR 1=1", "../../etc", "<|endoftext|>"]
    ),
)  # fmt: skip
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the parts of a document are, itself included."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path] + [place for key, part in inner for place in places(part, (*path, key))]


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> str:
    """The text of a document of which some parts are something else, gone, twice there, or new."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 1, 2, 3)))):
        document = _change(draw, document)
    text = json.dumps(document, ensure_ascii=draw(st.booleans()))
    match draw(st.sampled_from(range(16))):
        case 1:
            text = text[: draw(st.integers(0, len(text)))]
        case 2:
            place = draw(st.integers(0, len(text)))
            text = text[:place] + draw(st.text(alphabet='{}[]",:\\u0d8e1-.\t ', min_size=1, max_size=4)) + text[place:]
        case 3 if text.startswith("{") and isinstance(document, dict) and document:
            name = draw(st.sampled_from(sorted(map(str, document))))
            text = text[:-1] + f", {json.dumps(name)}: {json.dumps(draw(anything))}}}"
        case 4:
            words = [part for part in ("1.0", "0.9", "1", "0.5", "null") if part in text]
            if words:
                text = text.replace(draw(st.sampled_from(words)), draw(st.sampled_from(WORDS)), 1)
        case 5:
            depth = draw(st.sampled_from((30, 33, NESTED, 5000)))
            text = '{"inputs": ' * depth + "1" + "}" * depth if draw(st.booleans()) else "[" * depth + "]" * depth
    return text


def _change(draw: st.DrawFn, document: Any) -> Any:
    *where, last = draw(st.sampled_from(places(document))) or (None,)
    if last is None:
        return draw(anything)
    parent = document
    for key in where:
        parent = parent[key]
    kind = draw(st.sampled_from(range(6)))
    if kind == 0 and isinstance(parent, dict):
        del parent[last]
    elif kind == 1 and isinstance(parent, dict):
        parent[draw(st.text(max_size=6))] = draw(anything)
    elif kind == 2 and isinstance(parent, list):
        parent.extend(parent * draw(st.integers(1, 40)))
    else:
        parent[last] = draw(anything)
    return document


@st.composite
def requests(draw: st.DrawFn, operations: Mapping[str, Sequence[str]]) -> RawRequest:
    """An HTTP request, most of them to routes that take a body."""
    posts = sorted(path for path, methods in operations.items() if "POST" in methods)
    documents = [document for path in posts for document in DOCUMENTS.get(path, ())]
    twist = draw(st.sampled_from(TWISTS))
    path = draw(st.sampled_from([*sorted(operations), *STRANGE_PATHS] if twist == "path" else posts))
    own = documents if twist == "document" else DOCUMENTS.get(path, documents)
    body = draw(mutated(draw(st.sampled_from(own)))).encode("utf-8", "surrogatepass")
    if twist == "bytes":
        body = draw(st.binary(max_size=80))
    method = draw(st.sampled_from(METHODS)) if twist in ("path", "method") else "POST"
    headers = draw(st.sampled_from(("", "", "Accept: text/event-stream\r\n", "Accept: image/png\r\n")))
    headers += "" if body else "Content-Type: application/json\r\n"
    encoded = request_bytes(method, path, body, headers)
    if twist == "content type":
        content_type = draw(st.sampled_from(CONTENT_TYPES))
        encoded = encoded.replace(b"Content-Type: application/json", f"Content-Type: {content_type}".encode(), 1)
    return RawRequest(method, path, encoded)


@st.composite
def streams(draw: st.DrawFn) -> Frames:
    """A live stream whose frames are mostly right."""
    first = draw(st.one_of(st.just("{}"), mutated(FRAMES[0])))
    steps = draw(st.lists(st.one_of(st.just(json.dumps({"y": [1.0, 0.5]})), mutated(FRAMES[1])), max_size=4))
    frames: list[str | bytes] = [frame.encode("utf-8", "replace").decode() for frame in (first, *steps)]
    if draw(st.integers(0, 19)) == 0:
        frames.insert(draw(st.integers(0, len(frames))), draw(st.binary(max_size=20)))
    return Frames(tuple(frames))


def unchanged(operations: Mapping[str, Sequence[str]]) -> list[RawRequest]:
    """What begins the sessions, and every valid document as it is."""
    return [
        RawRequest("POST", path, request_bytes("POST", path, json.dumps(document).encode()))
        for path, documents in (("/filter", BEGINNINGS), *DOCUMENTS.items())
        if path in operations
        for document in documents
    ]


def cases(operations: Mapping[str, Sequence[str]]) -> st.SearchStrategy[RawRequest | Frames]:
    """Requests and, one in six, live streams.

    Args:
        operations: methods of the server's paths.
    """
    return st.sampled_from(range(6)).flatmap(lambda kind: requests(operations) if kind else streams())
