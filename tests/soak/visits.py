"""Users of pool slots: short live streams and requests that end in every way, and long streams that must not change.

Every answer is compared with its expected answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.errors import InvalidInput
from rfa.runtime.uncertainty.input import as_array
from rfa.runtime.uncertainty.interface import FilterOptions
from rfa.runtime.uncertainty.steps import Steps
from rfa.service.engine.engine import Engine
from rfa.service.engine.filter.filter_job import Filtered, FilterJob
from rfa.service.engine.filter.sequence_job import SequenceJob
from rfa.service.engine.filter.stream import FilterStreamOptions, Observed, StreamEnd, StreamJob
from rfa.service.engine.text.generated import Generation
from rfa.service.engine.text.options import GenerateOptions
from rfa.service.errors import InternalError, InvalidRequest, RowErrorReply, ServiceError
from tests.soak.courses import Truth, as_sent

TOO_LARGE = 1e200  # its square exceeds the range of floats
LONGEST_VISIT = 4


@dataclass
class Findings:
    """Results of the visitors.

    Attributes:
        ends: Visits by kind.
        answers: Compared answers, of long streams and of others.
        wrong: Wrong answers by kind.
    """

    ends: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)

    def compare(self, who: str, found: bytes, expected: bytes) -> None:
        """Compare an answer and count it."""
        self.answers[who] += 1
        self.wrong[who] += found != expected

    def expect(self, what: str, holds: bool) -> None:
        """Count another condition that must hold."""
        self.wrong[what] += not holds


class TextTruth(NamedTuple):
    """A text generated on an unshared model."""

    options: GenerateOptions
    tokens: bytes


@dataclass(frozen=True)
class World:
    """The engine with the expected answers of its filters and of some texts."""

    engine: Engine
    truths: Sequence[Truth]
    needles: Sequence[Truth]
    texts: Sequence[TextTruth]
    findings: Findings


class Visitor:
    """A client that makes visits of random kinds to random filters."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._findings = world.findings
        self._rng = rng

    async def visit(self) -> None:
        """Make one visit."""
        visits = {**VISITS, **(TEXT_VISITS if self._world.texts else {})}
        (kind,) = self._rng.choices(list(visits), list(visits.values()))
        try:
            await kind(self)
        except ServiceError:  # visits that expect a failure catch it themselves
            self._findings.expect("failed", holds=False)
        self._findings.ends[kind.__name__] += 1

    async def close(self) -> None:
        """Open a live stream that ends normally."""
        truth, start, count = self._choose()
        job = self._open(truth, start, wants_state=self._rng.random() < 0.3)
        self._push(job, truth, start, count)
        job.close()
        end = await self._read(job, truth, start)
        self._findings.expect("end", isinstance(end, StreamEnd) and end.steps == count)
        if isinstance(end, StreamEnd) and end.state is not None:
            self._findings.expect("state", end.state.count == start + count)

    async def converse(self) -> None:
        """Open a live stream that waits for each answer, is idle in between, and ends normally."""
        truth, start, count = self._choose()
        job = self._open(truth, start)
        for index in range(start, start + count):
            self._push(job, truth, index, 1)
            if await self._read(job, truth, index, answers=1) is not None:
                self._findings.expect("end", holds=False)
                return
        job.close()
        await self._read(job, truth, start + count)

    async def leave(self) -> None:
        """Open a live stream whose client disconnects, before or after its first answer."""
        truth, start, count = self._choose()
        job = self._open(truth, start)
        self._push(job, truth, start, count)
        if self._rng.random() < 0.5:
            await self._read(job, truth, start, answers=1)
        else:
            await asyncio.sleep(self._rng.choice((0, 0.001)))
        job.leave()

    async def poison(self) -> None:
        """Open a live stream with an observation whose numbers exceed the range of floats."""
        truth, start, count = self._choose()
        job = self._open(truth, start)
        self._push(job, truth, start, count - 1)
        last = truth.course.times[start + count - 1]
        size = self._world.engine.filter_model(truth.filter).observation_size
        job.push(Observed(last, [TOO_LARGE] * size, 1.0))
        job.close()
        end = await self._read(job, truth, start)
        self._findings.expect("poison", isinstance(end, StreamEnd) and end.refused == 1)

    async def crash(self) -> None:
        """Open a live stream that makes every batch raise. Other rows must not be affected."""
        await self._end_with(None, "crash", InternalError)

    async def _end_with(self, number: float | None, what: str, error: type[Exception]) -> None:
        """Open a live stream whose last observation repeats a number, or has none."""
        truth, start, count = self._choose()
        job = self._open(truth, start)
        self._push(job, truth, start, count - 1)
        size = self._world.engine.filter_model(truth.filter).observation_size
        job.push(Observed(truth.course.times[start + count - 1], [] if number is None else [number] * size, 1.0))
        job.close()
        end = await self._read(job, truth, start)
        self._findings.expect(what, isinstance(end, error))

    async def refuse(self) -> None:
        """Open a live stream that ends with a rejected frame."""
        truth, start, count = self._choose()
        job = self._open(truth, start)
        self._push(job, truth, start, count)
        job.close(InvalidRequest("A bad frame."))
        end = await self._read(job, truth, start)
        self._findings.expect("refusal", isinstance(end, InvalidRequest))

    async def request(self) -> None:
        """Send a request and read it to its end."""
        truth, start, count = self._choose()
        job = self._world.engine.filter(truth.filter, _request(truth, start, count))
        steps = await steps_of(job)
        self._compare(truth, start, steps)
        self._findings.expect("end", len(steps) == count)

    async def request_and_leave(self) -> None:
        """Send a request whose client disconnects."""
        truth, start, count = self._choose()
        options = _request(truth, start, count, is_streamed=self._rng.random() < 0.5)
        waiting = asyncio.ensure_future(self._world.engine.filter(truth.filter, options).result())
        await asyncio.sleep(self._rng.choice((0, 0, 0.001)))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    async def smooth(self) -> None:
        """Send a request for smoothing, which uses no slot of the engine."""
        truth, _, count = self._choose()
        options = replace(_request(truth, 0, count), smooth=True, samples=0)
        steps = await steps_of(self._world.engine.filter(truth.filter, options))
        self._findings.expect("end", len(steps) == count)

    async def err(self) -> None:
        """Send an invalid request, which is rejected before it gets a slot."""
        truth, start, count = self._choose()
        try:
            self._world.engine.filter(truth.filter, replace(_request(truth, start, count), levels=(1.5,)))
        except InvalidInput:
            return
        self._findings.expect("refusal", holds=False)

    async def text(self) -> None:
        """Generate a text, which must not depend on other requests."""
        truth = self._rng.choice(self._world.texts)
        generation: Generation = await self._world.engine.generate(None, truth.options).result()
        self._findings.compare("text", tokens_of(generation), truth.tokens)

    async def text_and_leave(self) -> None:
        """Generate a text whose reader disconnects."""
        options = replace(self._rng.choice(self._world.texts).options, is_streamed=True)
        events = self._world.engine.generate(None, options).events()
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]

    def _choose(self) -> tuple[Truth, int, int]:
        """Choose a course, its first observation, and the number of observations."""
        truth = self._rng.choice(self._world.truths)
        start = 0 if self._rng.random() < 0.7 else self._rng.randrange(len(truth.steps) - LONGEST_VISIT)
        return truth, start, self._rng.choice((1, 1, 1, 2, LONGEST_VISIT))

    def _open(self, truth: Truth, start: int, *, wants_state: bool = False) -> StreamJob:
        return open_stream(self._world.engine, truth, start, wants_state=wants_state)

    @staticmethod
    def _push(job: StreamJob, truth: Truth, start: int, count: int) -> None:
        course = truth.course
        for index in range(start, start + count):
            job.push(Observed(course.times[index], course.observations[index], course.noise[index]))

    async def _read(
        self, job: StreamJob, truth: Truth, start: int, answers: int | None = None
    ) -> StreamEnd | Exception | None:
        """Compare so many answers, or all until the end, which is returned."""
        index = start
        while answers is None or index < start + answers:
            try:
                replies = await job.replies()
            except Exception as error:
                return error
            if isinstance(replies, StreamEnd):
                return replies
            steps = [reply.step for reply in replies if not isinstance(reply.step, RowErrorReply)]
            self._compare(truth, index, steps)
            index += len(steps)
        return None

    def _compare(self, truth: Truth, start: int, steps: Sequence[object]) -> None:
        for index, step in enumerate(steps, start):
            self._findings.compare("visitor", as_sent(step), truth.steps[index])


VISITS: dict[Callable[[Visitor], Awaitable[None]], float] = {
    Visitor.close: 0.34,
    Visitor.converse: 0.10,
    Visitor.leave: 0.20,
    Visitor.poison: 0.05,
    Visitor.crash: 0.002,
    Visitor.refuse: 0.05,
    Visitor.request: 0.15,
    Visitor.request_and_leave: 0.08,
    Visitor.smooth: 0.002,
    Visitor.err: 0.02,
}
TEXT_VISITS: dict[Callable[[Visitor], Awaitable[None]], float] = {
    Visitor.text: 0.0015,
    Visitor.text_and_leave: 0.001,
}


async def follow_needle(world: World, truth: Truth, goes_on: Callable[[], bool]) -> None:
    """Follow a long live stream repeatedly from its beginning. Other users must not change it."""
    while goes_on():
        job = open_stream(world.engine, truth, 0, wants_state=True)
        try:
            await _follow(world, truth, job, goes_on)
        except ServiceError:
            world.findings.expect("needle failed", holds=False)
        world.findings.ends["needle"] += 1


async def _follow(world: World, truth: Truth, job: StreamJob, goes_on: Callable[[], bool]) -> None:
    course, findings = truth.course, world.findings
    for index, expected in enumerate(truth.steps):
        job.push(Observed(course.times[index], course.observations[index], course.noise[index]))
        replies = await job.replies()
        findings.compare("needle", b"" if isinstance(replies, StreamEnd) else as_sent(replies[0].step), expected)
        if not goes_on():
            break
    job.close()
    end = await job.replies()
    payload = end.state.payload if isinstance(end, StreamEnd) and end.state is not None else b""
    findings.compare("needle state", payload, world.engine.filter_model(truth.filter).pack(truth.states[index + 1]))


async def steps_of(job: FilterJob | SequenceJob) -> list[Any]:
    """Yield the steps of a request."""
    steps: list[Any] = []
    async for event in job.events():
        if isinstance(event, Steps):
            steps += event.replies()
        elif not isinstance(event, Filtered):
            steps.append(event)
    return steps


def open_stream(engine: Engine, truth: Truth, start: int, *, wants_state: bool) -> StreamJob:
    """Open a live stream that continues a course."""
    course = truth.course
    options = FilterStreamOptions(
        levels=course.levels,
        horizon=course.horizon,
        samples=course.samples,
        seed=course.seed,
        state=truth.states[start] if start else None,
        wants_state=wants_state,
    )
    return engine.filter_stream(truth.filter, options)


def _request(truth: Truth, start: int, count: int, *, is_streamed: bool = False) -> FilterOptions:
    course, piece = truth.course, slice(start, start + count)
    return FilterOptions(
        times=np.array(course.times[piece]),
        observations=as_array(course.observations[piece], course.size, truth.filter),
        noise=np.array(course.noise[piece]),
        levels=course.levels,
        horizon=course.horizon,
        samples=course.samples,
        seed=course.seed,
        mode="recurrent",
        smooth=False,
        is_streamed=is_streamed,
        state=truth.states[start] if start else None,
    )


def tokens_of(generation: Generation) -> bytes:
    """Return every number of every token of a text."""
    return as_sent([continuation.events for continuation in generation.texts])
