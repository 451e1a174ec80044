"""One connection: the bytes to send with their times, and how the client leaves."""

from __future__ import annotations

import base64
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Op = Literal["send", "pause", "await", "half-close", "reset", "leave", "deaf"]


@dataclass(frozen=True)
class Step:
    """`send` bytes, `pause` seconds, `await` an answer, `half-close`, `reset`, `leave` after seconds, or be `deaf`."""

    op: Op
    data: bytes = b""
    seconds: float = 0.0


@dataclass(frozen=True)
class Case:
    """The steps of one connection. After the last one the client waits for the server to close."""

    index: int
    kind: str
    steps: tuple[Step, ...]

    @property
    def data(self) -> bytes:
        """Return all bytes to send."""
        return b"".join(step.data for step in self.steps)

    @property
    def is_cut_short(self) -> bool:
        """Return whether the client may leave before all answers."""
        return any(step.op in ("reset", "leave", "deaf") for step in self.steps)

    @property
    def half_closes(self) -> bool:
        """Return whether the client closes its sending side."""
        return any(step.op == "half-close" for step in self.steps)

    def with_steps(self, steps: Sequence[Step]) -> Case:
        """Return the case with other steps."""
        return replace(self, steps=tuple(steps))

    def to_json(self) -> dict[str, Any]:
        """Convert to a line of the file of failures."""
        steps = [[s.op, base64.b64encode(s.data).decode(), s.seconds] for s in self.steps]
        return {"index": self.index, "kind": self.kind, "steps": steps}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Case:
        """Parse the output of `to_json`."""
        steps = tuple(Step(op, base64.b64decode(data), seconds) for op, data, seconds in document["steps"])
        return cls(document["index"], document["kind"], steps)


Part = bytes | Step
WAIT = Step("await", seconds=2.0)


def paced(rng: random.Random, parts: Sequence[Part]) -> list[Step]:
    """Convert parts to steps, most in one piece, others cut at random positions and sent slowly."""
    steps: list[Step] = []
    pending: list[bytes] = []
    manner = rng.random()
    for part in parts:
        if isinstance(part, Step):
            steps += _pieces(rng, b"".join(pending), manner)
            pending = []
            steps.append(part)
        else:
            pending.append(part)
    return steps + _pieces(rng, b"".join(pending), manner)


def _pieces(rng: random.Random, data: bytes, manner: float) -> list[Step]:
    if not data:
        return []
    if manner < 0.7 or len(data) < 2:
        return [Step("send", data)]
    if manner < 0.99:
        cuts = sorted(rng.randrange(1, len(data)) for _ in range(rng.choice((1, 1, 1, 2, 2, 4))))
        seconds = (0.0, 0.0, 0.001, 0.004)[int(manner * 100) % 4]
    else:
        begin = rng.randrange(len(data))
        cuts, seconds = list(range(begin + 1, min(begin + 60, len(data)))), 0.001
    edges = [0, *cuts, len(data)]
    steps: list[Step] = []
    for first, last in itertools.pairwise(edges):
        if first < last:
            steps += [Step("send", data[first:last]), Step("pause", seconds=seconds)]
    return steps[:-1]
