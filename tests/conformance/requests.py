"""The requests: names, bodies and what they depend on. The data are computed, so that nothing is stored."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

ARROW: Final = "application/vnd.apache.arrow.stream"
JSON: Final = "application/json"
SSE: Final = "text/event-stream"
HOUR: Final = 3600.0


@dataclass(frozen=True)
class Call:
    """One request. `<state NAME>` in a text of `body` is the last `state` in the reply to the call NAME.

    Attributes:
        body: a JSON document, bytes, or for a WebSocket the list of frames.
        key: API key: `open` has no quotas, `small` a few tokens a second; None sends none.
        parallel: WebSockets that are already open while this one is.
    """

    name: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    key: str | None = "open"
    parallel: int = 0


def wave(count: int, *, period: float = 12.0, level: float = 20.0, seed: int = 1) -> list[float]:
    """A season, a slope and noise; the noise comes from a congruential generator."""
    values, noise = [], seed
    for index in range(count):
        noise = (1103515245 * noise + 12345) % 2**31
        value = level + 0.02 * index + 5 * math.sin(2 * math.pi * index / period) + noise / 2**31 - 0.5
        values.append(round(value, 3))
    return values


def gaps(values: list[float]) -> list[float | None]:
    """With two missing values and an outlier."""
    found: list[float | None] = list(values)
    found[5] = found[len(found) // 2] = None
    found[len(found) * 2 // 3] = 90.0
    return found


def table(**columns: Any) -> bytes:
    """Columns as an Arrow stream."""
    found = pa.table(columns)
    body = io.BytesIO()
    with pa.ipc.new_stream(body, found.schema) as writer:
        writer.write_table(found)
    return body.getvalue()


ONE: Final = gaps(wave(48))
LONG: Final = gaps(wave(400, period=24.0, seed=3))
TIMES: Final = [HOUR * index for index in range(48)]
PAIRS: Final = [[value, second] for value, second in zip(gaps(wave(30)), wave(30, level=3.0, seed=5), strict=True)]
PLANE: Final = {"preset": "constant_velocity", "dimensions": 2, "process_noise": 0.1, "measurement_noise": 0.25}
MATRICES: Final = {"A": [[0, 1], [0, -0.1]], "Q": [[0, 0], [0, 0.1]], "C": [[1, 0]], "R": 0.25, "P0": 100}
ROWS: Final = {"observations": [[value] for value in ONE[:24]], "seed": 7}


def calls() -> Iterator[Call]:
    """Every request, in order."""
    yield from _pages()
    yield from _filters()
    yield from _systems()
    yield from _states()
    yield from _many()
    yield from _arrow()
    yield from _read()
    yield from _streams()
    yield from _texts()
    yield from _completions()
    yield from _errors()
    yield Call("metrics", "GET", "/metrics")


def _pages() -> Iterator[Call]:
    for path in ("/health", "/ready", "/info", "/openapi.json", "/v1/models", "/v1/models/books", "/", "/docs"):
        yield Call(f"GET {path}", "GET", path)
    yield Call("HEAD /info", "HEAD", "/info")
    yield Call("OPTIONS /filter", "OPTIONS", "/filter")
    yield Call("no such page file", "GET", "/page/none.js")
    yield Call("no such model of OpenAI's", "GET", "/v1/models/none")


def _filter(name: str, **body: Any) -> Call:
    return Call(f"filter: {name}", "POST", "/filter", body)


def _filters() -> Iterator[Call]:
    rows: dict[str, dict[str, Any]] = {
        "rows": {"horizon": [0.1, 1, 2.5], "levels": [0.5, 0.9]},
        "samples": {"samples": 3},
        "smooth": {"smooth": True, "samples": 2},
        "alarm": {"alarm": {"rate": 0.05, "direction": "up", "min_deviation": 2, "quiet": 3}},
        "fields": {"fields": ["mean", "interval", "anomaly"]},
        "NDJSON": {"stream": True, "horizon": [1]},
        "attention": {"mode": "attention"},
        "passes": {"passes": 1},
        "noise and bias": {"noise": [2.0] * len(PAIRS), "bias": [[1.5, 0]] * len(PAIRS)},
        "input": {"input": [[0.1, -0.1]] * len(PAIRS)},
    }
    two = {"x": [row[0] for row in PAIRS], "y": [row[1] for row in PAIRS]}
    times = [0.1 * index for index in range(len(PAIRS))]
    for model in ("series", "auto", "auto-joint", "oscillator", "linear"):
        for name, options in rows.items():
            yield _filter(f"{model} {name}", model=model, observations=PAIRS, seed=7, **options)
        yield _filter(f"{model} columns", model=model, values=two, times=times, ahead=4, smooth=True, seed=7)
    for model in ("series", "auto", "auto-joint"):
        yield _filter(f"{model} list", model=model, values=ONE, seed=7)
        yield _filter(f"{model} long", model=model, values=LONG, ahead=24, levels=[0.5, 0.9, 0.99], seed=7)
        alarm = {"rate": "1/day", "range": [0, 60]}
        yield _filter(f"{model} alarm in time", model=model, values=ONE, times=TIMES, alarm=alarm, seed=7)
    yield Call("filter: SSE", "POST", "/filter", {**ROWS, "stream": True}, {"Accept": SSE})
    for name, values in {
        "short": [1.0],
        "constant": [3.0] * 40,
        "all missing": [None] * 8,
        "tiny": [1e-9 * value for value in wave(40)],
        "large": [1e9 + value for value in wave(40)],
    }.items():
        yield _filter(name, values=values, seed=7)
    yield _filter("empty rows", observations=[None, None, [1.0]], seed=7)
    yield _filter("irregular times", values={"y": ONE[:6]}, times=[0, 1, 1, 7, 7.5, 30], ahead=3, seed=7)


def _systems() -> Iterator[Call]:
    presets: dict[str, dict[str, Any]] = {
        "level": {},
        "trend": {"slope_noise": 0.01, "damping": 0.1},
        "constant_velocity": {},
        "constant_acceleration": {},
        "oscillator": {"period": 12, "damping": 0.01},
        "seasonal": {"period": 12, "harmonics": 2, "season_noise": 0.001},
    }
    for preset, more in presets.items():
        system = {"preset": preset, "process_noise": 0.1, "measurement_noise": 0.25, **more}
        yield _filter(f"preset {preset}", system=system, values=ONE, ahead=6, smooth=True, seed=7)
    yield _filter("matrices", system=MATRICES, **ROWS, horizon=[1, 5], samples=2, smooth=True)
    yield _filter("transition", system={"F": [[0.9]], "dt": 2, "Q": 0.2, "C": [[1]], "R": 1}, **ROWS)
    yield _filter("Kalman", system={**MATRICES, "nu": None, "offset": [2.0]}, **ROWS, input=[[0.1, 0]] * 24)
    yield _filter("plane", system=PLANE, observations=PAIRS, fields=["mean", "std", "weight"], seed=7)
    monday = {"zone": "Europe/Berlin", "slots": 4, "pattern": [[[0, 1, 2, 1]] * 7]}
    level = {"preset": "level", "process_noise": 0.1, "measurement_noise": 0.25, "calendar": monday}
    days = [1.7e9 + time for time in TIMES]
    yield _filter("calendar", system=level, values={"y": ONE}, times=days, ahead=6, seed=7)


def _states() -> Iterator[Call]:
    for name in ("series", "auto", "auto-joint", "oscillator", "linear", "system"):
        chosen: dict[str, Any] = {"system": PLANE} if name == "system" else {"model": name}
        first, last = {**chosen, "observations": PAIRS[:20]}, {**chosen, "observations": PAIRS[20:]}
        yield _filter(f"{name} begins", **first, return_state=True, seed=7)
        resumed = f"<state filter: {name} begins>"
        yield _filter(f"{name} resumes", **last, state=resumed, horizon=[1])
        yield _filter(f"{name} resumes in columns", **chosen, values={"a": [1.0], "b": [2]}, state=resumed, ahead=3)
        yield _filter(f"{name} second begins", **chosen, observations=PAIRS[5:25], return_state=True, seed=8)
        states = [resumed, f"<state filter: {name} second begins>"]
        for method in ("covariance_intersection", "precision"):
            body = {**chosen, "states": states, "method": method, "horizon": [1]}
            yield Call(f"merge: {name} {method}", "POST", "/state/merge", body)
    yield _filter("session begins", **ROWS, return_state="session:room")
    yield _filter("session goes on", observations=[[21.0]], state="session:room")
    yield _filter("session is there already", **ROWS, return_state="session:room")  # 409
    yield _filter("no such session", **ROWS, state="session:none")
    yield _filter("state of another model", model="auto", observations=PAIRS, state="<state filter: linear begins>")
    yield _filter("not a state", **ROWS, state="AAAA")
    body = {"model": "linear", "states": ["<state filter: linear begins>"]}
    yield Call("merge: one state", "POST", "/state/merge", body)


def _many() -> Iterator[Call]:
    series = {
        "rows": {"observations": [[value] for value in ONE]},
        "columns": {"times": TIMES, "values": {"a": ONE}},
        "bad": {"values": {"a": []}},
        "own system": {"system": MATRICES, "values": {"y": ONE}},
    }
    for model in ("series", "auto"):
        body: dict[str, Any] = {"model": model, "series": dict(list(series.items())[:3]), "seed": 7, "ahead": 2}
        yield _filter(f"many {model}", **body)
        yield _filter(f"many {model} NDJSON", **body, stream=True)
    yield _filter("many smooth", model="auto", series=dict(list(series.items())[:3]), seed=7, smooth=True)
    yield _filter("many states", series={"a": {"values": {"y": ONE}}}, return_state=True, seed=7)
    yield _filter("many resume", series={"a": {"values": {"y": [1.0]}, "state": "<state filter: many states>"}})
    yield _filter("many own system", series={"own": series["own system"]}, seed=7)


def _arrow() -> Iterator[Call]:
    headers = {"Content-Type": ARROW}
    single = table(time=TIMES, y=ONE)
    for name, params in {
        "series": {"model": "series", "seed": "7", "ahead": "3"},
        "auto": {"model": "auto", "seed": "7", "levels": "0.5,0.9", "fields": "mean,interval", "smooth": "true"},
    }.items():
        yield Call(f"arrow: {name}", "POST", "/filter", single, headers, params)
    many = table(key=["a", "b"] * 24, time=[HOUR * (index // 2) for index in range(48)], y=ONE)
    for model in ("series", "auto"):
        params = {"model": model, "by": "key", "seed": "7", "return_state": "true"}
        yield Call(f"arrow: many {model}", "POST", "/filter", many, headers, params)
    yield Call("arrow: text column", "POST", "/filter", table(y=["a"]), headers, {"seed": "7"})
    yield Call("arrow: cut off", "POST", "/filter", single[:200], headers)


def _read() -> Iterator[Call]:
    lines = [f"2026-01-{1 + index:02d};{value}" for index, value in enumerate(wave(12))]
    text = "\n".join(["Datum;Wert", *(line.replace(".", ",") for line in lines)])
    yield Call("read: CSV", "POST", "/read", text.encode(), {"Content-Type": "text/csv"}, {"zone": "Europe/Berlin"})
    long = "id,ds,y\na,2026-01-01,1\nb,2026-01-01,2\na,2026-01-02,3\nb,2026-01-02,\n"
    yield Call("read: long CSV", "POST", "/read", long.encode(), params={"by": "id"})
    yield Call("read: regular", "POST", "/read", b"time,v\n0,1\n61,2\n118,3\n", params={"every": "1min"})
    yield Call("read: arrow", "POST", "/read", table(time=TIMES[:4], y=ONE[:4]))
    yield Call("read: bad cell", "POST", "/read", b"time,v\n0,1\n60,x\n120,2\n", params={"columns": "v"})
    yield Call("read: nothing", "POST", "/read", b"")
    yield Call("read: no such column", "POST", "/read", b"a,b\n1,2\n", params={"columns": "c"})
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    yield Call("read: multipart", "POST", "/read", b"--x\r\n\r\n1\r\n--x--\r\n", form)


def _streams() -> Iterator[Call]:
    def stream(name: str, first: Any, frames: list[Any], parallel: int = 0) -> Call:
        return Call(f"stream: {name}", "WS", "/filter/stream", [first, *frames], parallel=parallel)

    close = {"close": True}
    rows = [{"t": HOUR * index, "y": [value]} for index, value in enumerate(ONE[:20])]
    for model in ("series", "auto"):
        first = {"model": model, "seed": 7, "levels": [0.5, 0.9], "horizon": [HOUR], "samples": 1}
        yield stream(model, {**first, "return_state": True, "alarm": {"rate": 0.05}}, [*rows, close])
        resumed = f"<state stream: {model}>"
        yield stream(f"{model} resumed", {"state": resumed, "model": model}, [{"t": 9e4, "y": [21.0]}, close])
    pairs = [{"t": 0.1 * index, "y": row} for index, row in enumerate(PAIRS[:12])]
    for model in ("auto-joint", "oscillator", "linear"):
        size = {"size": 2} if model == "auto-joint" else {}
        yield stream(model, {"model": model, "seed": 7, "state_every": 5, **size}, [*pairs, close])
    driven = [{**row, "input": [0, 0.1], "bias": [0.5], "noise": 2.0} for row in rows[:6]]
    yield stream("system", {"system": MATRICES, "seed": 7, "fields": ["mean", "nis"]}, [*driven, close])
    yield stream("missing", {"seed": 7}, [{"y": [1.0]}, {"y": None}, {"y": [None]}, {"y": [2.0]}, close])
    yield stream("time goes back", {"seed": 7}, [{"t": 1, "y": [1.0]}, {"t": 0, "y": [1.0]}, close])
    yield stream("wrong size", {"seed": 7}, [{"y": [1.0, 2.0]}, close])
    yield stream("unknown field", {"sede": 7}, [])
    yield stream("no such model", {"model": "none"}, [])
    yield stream("too many", {"seed": 7}, [{"y": [1.0]}, close], parallel=2)  # 429 in a frame


def _texts() -> Iterator[Call]:
    def text(name: str, path: str = "/generate", **body: Any) -> Call:
        return Call(f"text: {name}", "POST", path, {"inputs": "It was the", **body})

    few = {"max_new_tokens": 6, "seed": 7}
    for decode in ("recurrent", "attention"):
        parameters = {**few, "decode": decode}
        yield text(f"greedy {decode}", parameters={**parameters, "do_sample": False, "top_n_tokens": 2})
        yield text(f"sampled {decode}", parameters={**parameters, "temperature": 0.8, "top_k": 20, "top_p": 0.9})
        yield text(f"streamed {decode}", parameters={**parameters, "temperature": 1.0}, stream=True)
        latent = {"latent_noise": 1.0, "return_latents": True, "max_new_tokens": 2}
        yield text(f"latents {decode}", parameters={**parameters, **latent})
    yield text("several", parameters={**few, "n": 3, "temperature": 1.0})
    yield text("stop", parameters={**few, "max_new_tokens": 40, "stop": ["e"], "return_full_text": True})
    yield text("truncate", parameters={**few, "truncate": 2, "details": False})
    yield text("empty", inputs="", parameters=few)
    yield text("state", parameters=few, return_state=True)
    yield text("resumed", inputs=" and", parameters=few, state="<state text: state>")
    yield text("session", parameters=few, return_state="session:text")
    yield text("at the root", "/", parameters=few)
    yield text("TGI stream", "/generate_stream", parameters=few)
    yield text("misplaced seed", seed=7)
    yield text("unknown model", model="none")
    yield text("a filter", model="linear")
    yield text("long", parameters={"max_new_tokens": 999_999})


def _completions() -> Iterator[Call]:
    def complete(name: str, key: str = "open", **body: Any) -> Call:
        body = {"prompt": "It was the", "max_tokens": 5, "seed": 7, **body}
        return Call(f"openai: {name}", "POST", "/v1/completions", body, key=key)

    yield complete("plain")
    yield complete("greedy logprobs", temperature=0, logprobs=3)
    yield complete("several", prompt=["It was", "She said"], n=2, echo=True)
    yield complete("tokens", prompt=[[73, 84], [80]], top_k=5, top_p=0.9)
    yield complete("stream", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    yield complete("stream several", n=2, stream=True, logprobs=1)
    yield complete("stop", stop=["a", "e"], max_tokens=30)
    yield complete("attention", decode="attention", return_latents=True, max_tokens=2)
    yield complete("penalty", presence_penalty=0.5)
    yield complete("best_of", best_of=3)
    yield complete("unknown model", model="gpt-4")
    yield complete("token out of range", prompt=[2**30])
    yield complete("within the quota", key="small", max_tokens=16)
    yield complete("beyond the quota", key="small", max_tokens=16)  # 429


def _errors() -> Iterator[Call]:
    yield Call("no such path", "GET", "/none")
    yield Call("wrong method", "DELETE", "/filter")
    yield Call("no key", "POST", "/filter", ROWS, key=None)
    yield Call("no media type", "POST", "/filter", b"{}", {"Content-Type": "text/plain"})
    yield Call("compressed", "POST", "/filter", b"{}", {"Content-Type": JSON, "Content-Encoding": "gzip"})
    yield Call("other origin", "POST", "/filter", ROWS, {"Origin": "http://evil.example"})
    for name, text in {
        "not JSON": b"{",
        "twice": b'{"values": [1], "values": [2]}',
        "NaN": b'{"values": [NaN]}',
        "deep": b"[" * 100,
        "a list": b"[]",
        "not UTF-8": b'{"model": "\xff"}',
        "too large": b'{"values": [' + b"1," * 2_100_000 + b"1]}",
    }.items():
        yield Call(f"body: {name}", "POST", "/filter", text, {"Content-Type": JSON})
    wrong: dict[str, dict[str, Any]] = {
        "nothing": {},
        "both forms": {"values": [1.0], "observations": [[1.0]]},
        "text as number": {"values": ["1"]},
        "unknown fields": {"values": [1.0], "valeus": [1], "x": 1},
        "bad level": {"values": [1.0], "levels": [1.5]},
        "bad rate": {"values": [1.0], "alarm": {"rate": "often"}},
        "rate without times": {"values": [1.0], "alarm": {"rate": "1/day"}},
        "times go back": {"values": [1.0, 2.0], "times": [1, 0]},
        "lengths differ": {"values": {"a": [1.0], "b": []}},
        "sizes differ": {"observations": [[1.0], [1.0, 2.0]]},
        "wrong size": {"model": "linear", "observations": [[1.0]]},
        "unknown model": {"model": "none", "values": [1.0]},
        "a text model": {"model": "books", "values": [1.0]},
        "model and system": {"model": "auto", "system": PLANE, "values": [1.0]},
        "unstable": {"system": {**MATRICES, "A": [[1, 0], [0, 1]], "P0": None}, "values": [1.0]},
        "no noise": {"system": {**MATRICES, "R": 0}, "values": [1.0]},
        "shapes differ": {"system": {**MATRICES, "C": [[1]]}, "values": [1.0]},
        "rows only": {"values": [1.0], "samples": 2},
        "too long": {"values": [1.0] * 20_001},
        "too many passes": {"model": "linear", "observations": PAIRS, "passes": 60},
        "too many ahead": {"values": [1.0], "ahead": 5000},
        "attention with state": {**ROWS, "mode": "attention", "return_state": True},
    }
    for name, body in wrong.items():
        yield _filter(f"error, {name}", **body)
