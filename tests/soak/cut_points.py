"""Streams that are cut anywhere and go on in another process are bit for bit the streams that were never cut.

    python -m tests.soak.cut_points --count 1000

Two servers on two ports share nothing but the keys that seal states. Each stream, a filter's or a text's, is asked for
once whole, and once in segments, each on the other server than the one before it and in a random form: one reply,
lines, or a live stream that is closed or left. All answers must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import aiohttp
import numpy as np
import orjson
from tqdm import tqdm

from rfa.benchmarks.load.server import started
from rfa.measured import RESULTS, origin, write_result
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from tests.soak.courses import Course, make_course

RESULT = RESULTS / "cut-points.json"
FILTERS = {"linear": 2, "oscillator": 2}  # name → size of an observation
LANGUAGE = "books"
TEXT_SHARE = 0.4
LONGEST_COURSE, LONGEST_TEXT, MOST_CUTS = 24, 24, 4
AT_A_TIME = 4
MOST_WRONG = 100
PROMPTS = ("It was the", "She said: “no”", "", "naïve café — 東京 🙂", "A long time ago, in a house by the sea,", "…")
STOPS = ((), (), (" the", "."), ("e ", "\n\n", "ing"), ("zzzzzz", "🙂🙂"))
Segment = Callable[[str, Any, int, int, str | None], Awaitable[tuple[list[Any], str | None]]]


class SegmentFailed(RuntimeError):
    """A server did not answer a segment as it must; the message is for the report."""


@dataclass
class Tally:
    """What happened.

    Attributes:
        cuts: cuts crossed, by what was cut and the form of the segment behind it.
        answers: answers that were compared.
        wrong: streams that differ, by kind, with the first few told.
    """

    cuts: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def differ(self, kind: str, example: str) -> None:
        """Count a stream that is not what it must be."""
        self.wrong[kind] += 1
        if len(self.examples) < 5:
            self.examples.append(f"{kind}: {example}"[:500])


@dataclass(frozen=True)
class Text:
    """A text to ask for."""

    prompt: str
    length: int
    parameters: dict[str, Any]


class Cutter:
    """A client of both servers."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str], seed: int) -> None:
        self._session = session
        self._urls = urls
        self._rng = random.Random(seed)
        self._draw = np.random.default_rng(seed)
        self.tally = Tally()

    async def cut_one(self) -> int:
        """One stream, whole and in segments; the number of cuts."""
        if self._rng.random() < TEXT_SHARE:
            return await self._cut_text()
        name = self._rng.choice(list(FILTERS))
        length = self._rng.randint(2, LONGEST_COURSE)
        course = make_course(self._draw, length, FILTERS[name])
        subject = (name, course, self._rng.random() < 0.3)
        return await self._compare(
            "filter", subject, length, self._plain, [self._plain, self._lines, self._closed, self._left]
        )

    async def _cut_text(self) -> int:
        rng = self._rng
        parameters: dict[str, Any] = {
            "seed": rng.getrandbits(53),
            "latent_noise": rng.choice((0.0, 0.5)),
            "stop": list(rng.choice(STOPS)),
            # Hot texts are full of tokens that are pieces of characters.
            "temperature": rng.choice((0, 0.8, 1.0, 2.5)),
            "top_n_tokens": rng.choice((0, 2)),
            "return_latents": rng.random() < 0.3,
        }
        if rng.random() < 0.3:
            parameters["top_p"] = 0.95
        length = rng.randint(2, LONGEST_TEXT)
        subject = Text(rng.choice(PROMPTS), length, parameters)
        return await self._compare("text", subject, length, self._text, [self._text, self._text_events])

    async def _compare(self, kind: str, subject: Any, length: int, whole: Segment, forms: Sequence[Segment]) -> int:
        here = self._rng.randrange(2)
        try:
            expected, _ = await whole(self._urls[here], subject, 0, length, None)
            # A text may end by itself: cuts are inside of what there is.
            length = min(length, len(expected))
            most = min(MOST_CUTS, length - 1)
            cuts = sorted(self._rng.sample(range(1, length), self._rng.randint(1, most))) if most > 0 else []
            found: list[Any] = []
            state = None
            for begin, end in zip([0, *cuts], [*cuts, length], strict=True):
                form = self._rng.choice(forms)
                answers, state = await form(self._urls[here], subject, begin, end, state)
                found += answers
                if begin:
                    self.tally.cuts[f"{kind} {form.__name__.strip('_')}"] += 1
                here = 1 - here
        except (SegmentFailed, aiohttp.ClientError, TimeoutError) as error:
            self.tally.differ(kind, repr(error))
            return 0
        self.tally.answers += len(expected)
        stops = subject.parameters["stop"] if isinstance(subject, Text) else []
        if not (are_same_texts(found, expected, stops) if stops else orjson.dumps(found) == orjson.dumps(expected)):
            self.tally.differ(kind, f"cuts {cuts}, {subject}")
        return len(cuts)

    # Segments of a filter's stream: the answers, and the state after them.

    async def _plain(
        self, url: str, subject: tuple[str, Course, bool], begin: int, end: int, state: str | None
    ) -> tuple[list[Any], str | None]:
        reply = orjson.loads(await self._post(url, "/filter", _filter_body(subject, begin, end, state)))
        return reply["steps"], reply["state"]

    async def _lines(
        self, url: str, subject: tuple[str, Course, bool], begin: int, end: int, state: str | None
    ) -> tuple[list[Any], str | None]:
        body = {**_filter_body(subject, begin, end, state), "stream": True}
        *steps, last = map(orjson.loads, (await self._post(url, "/filter", body)).splitlines())
        if not last.get("done"):
            raise SegmentFailed(str(last))
        return steps, last["state"]

    async def _closed(
        self, url: str, subject: tuple[str, Course, bool], begin: int, end: int, state: str | None
    ) -> tuple[list[Any], str | None]:
        """A live stream that ends well, with the state in its last frame."""
        steps: list[Any] = []
        async with self._session.ws_connect(f"{url}/filter/stream") as socket:
            await self._begin(socket, subject, state, {"return_state": True})
            for frame in _frames(subject, begin, end):
                await socket.send_str(frame)
            await socket.send_str('{"close": true}')
            steps += [await _receive(socket) for _ in range(begin, end)]
            return steps, (await _receive(socket))["state"]

    async def _left(
        self, url: str, subject: tuple[str, Course, bool], begin: int, end: int, state: str | None
    ) -> tuple[list[Any], str | None]:
        """A live stream whose client is gone after a step that came with its state."""
        steps: list[Any] = []
        last = None
        async with self._session.ws_connect(f"{url}/filter/stream") as socket:
            await self._begin(socket, subject, state, {"state_every": 1})
            for frame in _frames(subject, begin, end):
                await socket.send_str(frame)
                step = await _receive(socket)
                last, _ = step.pop("state"), step.pop("warnings")
                steps.append(step)
            socket.get_extra_info("socket").shutdown(SHUT_RDWR)
        return steps, last

    async def _begin(
        self, socket: aiohttp.ClientWebSocketResponse, subject: tuple[str, Course, bool], state: str | None, more: Any
    ) -> None:
        name, course, _ = subject
        question = {"levels": course.levels, "horizon": course.horizon, "samples": course.samples}
        seed = {"seed": course.seed} if state is None else {"state": state}
        await socket.send_str(orjson.dumps({"model": name, **question, **seed, **more}).decode())
        if not (ready := await _receive(socket)).get("ready"):
            raise SegmentFailed(str(ready))

    # Segments of a text: the tokens, each with the text that it gave.

    async def _text(
        self, url: str, text: Text, begin: int, end: int, state: str | None
    ) -> tuple[list[Any], str | None]:
        reply = orjson.loads(await self._post(url, "/generate", _text_body(text, begin, end, state)))
        details = reply["details"]
        tops = details["top_tokens"] or [None] * len(details["tokens"])
        latents = details["latents"] or [None] * len(details["tokens"])
        return [list(row) for row in zip(details["tokens"], tops, latents, strict=True)], reply["state"]

    async def _text_events(
        self, url: str, text: Text, begin: int, end: int, state: str | None
    ) -> tuple[list[Any], str | None]:
        body = {**_text_body(text, begin, end, state), "stream": True}
        content = await self._post(url, "/generate", body)
        events = [orjson.loads(line[6:]) for line in content.split(b"\n\n") if line]
        if not events or events[-1].get("details") is None:
            raise SegmentFailed(str(events[-1:]))
        return [[event["token"], event["top_tokens"], event["latent"]] for event in events], events[-1]["state"]

    async def _post(self, url: str, path: str, body: Any) -> bytes:
        async with self._session.post(url + path, data=orjson.dumps(body)) as response:
            content = await response.read()
        if response.status != 200:
            raise SegmentFailed(content.decode(errors="replace"))
        return content


def are_same_texts(found: Sequence[Any], expected: Sequence[Any], stops: Sequence[str]) -> bool:
    """Whether a text in segments is the whole one, where stop sequences may lie across a cut.

    All numbers are equal. At a cut the text that may yet turn out to begin a stop sequence is given out; so, where one
    did, its beginning is left over at the end, and else the texts are equal.
    """
    numbers = [
        [orjson.dumps([{**token, "text": ""}, *others]) for token, *others in part] for part in (found, expected)
    ]
    reported, whole = ("".join(token["text"] for token, *_ in part) for part in (found, expected))
    left_over = reported[len(whole) :]
    is_beginning = any(stop.startswith(left_over) and stop != left_over for stop in stops)
    return numbers[0] == numbers[1] and reported.startswith(whole) and is_beginning


def _filter_body(subject: tuple[str, Course, bool], begin: int, end: int, state: str | None) -> dict[str, Any]:
    name, course, counts = subject
    return {
        "model": name,
        "observations": course.observations[begin:end],
        "noise": course.noise[begin:end],
        # Where no times are given they are the indices, which the state knows.
        **({} if counts else {"times": course.times[begin:end]}),
        "levels": course.levels,
        "horizon": course.horizon,
        "samples": course.samples,
        "return_state": True,
        **({"seed": course.seed} if state is None else {"state": state}),
    }


def _frames(subject: tuple[str, Course, bool], begin: int, end: int) -> list[str]:
    _, course, counts = subject
    frames = [{"y": course.observations[i], "noise": course.noise[i]} for i in range(begin, end)]
    if not counts:
        frames = [{**frame, "t": t} for frame, t in zip(frames, course.times[begin:end], strict=True)]
    return [orjson.dumps(frame).decode() for frame in frames]


def _text_body(text: Text, begin: int, end: int, state: str | None) -> dict[str, Any]:
    # The seed goes with the state.
    parameters = {name: value for name, value in text.parameters.items() if state is None or name != "seed"}
    return {
        "model": LANGUAGE,
        "inputs": text.prompt if state is None else "",
        "parameters": {**parameters, "max_new_tokens": end - begin},
        "return_state": True,
        "state": state,
    }


async def _receive(socket: aiohttp.ClientWebSocketResponse) -> Any:
    message = await socket.receive()
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise SegmentFailed(f"the live stream ended with {message}")
    document = orjson.loads(message.data)
    if "error" in document:
        raise SegmentFailed(message.data)
    return document


async def cross(urls: Sequence[str], count: int, seed: int, *, progress: bool = False) -> Tally:
    """Streams until so many cuts were crossed between the two servers."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True), headers={"Content-Type": "application/json"}
    ) as session:
        cutter = Cutter(session, urls, seed)
        with tqdm(total=count, desc="cuts", disable=not progress) as bar:
            while cutter.tally.cuts.total() < count and cutter.tally.wrong.total() < MOST_WRONG:
                bar.update(sum(await asyncio.gather(*(cutter.cut_one() for _ in range(AT_A_TIME)))))
        return cutter.tally


def report(tally: Tally, seed: int) -> dict[str, Any]:
    """The document that is stored."""
    return {
        **origin("python -m tests.soak.cut_points"),
        "seed": seed,
        "cuts": tally.cuts.total(),
        "cuts_by_form": dict(sorted(tally.cuts.items())),
        "answers_compared": tally.answers,
        "streams_that_differ": tally.wrong.total(),
        "examples": tally.examples,
    }


def main() -> int:
    """Cross the cuts and store what happened; 1 if any stream differs."""
    parser = argparse.ArgumentParser(
        description="Cut streams and go on in another process; the answers must not differ."
    )
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    bundles = [BUNDLE_ROOT / name for name in (*FILTERS, LANGUAGE)]
    with ExitStack() as stack:
        servers = [stack.enter_context(started(bundles, {"processes": 1, "state_keys": key})) for _ in range(2)]
        tally = asyncio.run(cross([server.url for server in servers], arguments.count, arguments.seed, progress=True))
    document = report(tally, arguments.seed)
    write_result(arguments.out, document)
    print(f"{document['cuts']} cuts, {document['answers_compared']} answers, {document['streams_that_differ']} differ")
    return int(document["streams_that_differ"] != 0 or document["cuts"] < arguments.count)


if __name__ == "__main__":
    raise SystemExit(main())
