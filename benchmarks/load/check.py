"""Compare replies with the expected results: a hash of the decimal form of every number, and times, indices and counts.

`state`, warnings, timings and times are not hashed. So streams can send the same series at different times, and a reply
to the wrong stream is detected.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from rfa.benchmarks.load.series import STEP, Row

DIGEST_BYTES = 8
# The server adds log-likelihoods in pieces of another size, and possibly in another order.
LIKELIHOOD_TOLERANCE = 1e-9


def digest(document: Any) -> bytes:
    """Hash a document so that numbers are compared to the last digit. The order of keys does not matter."""
    canonical = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(canonical, digest_size=DIGEST_BYTES).digest()


def step_digest(step: dict[str, Any]) -> bytes:
    """Hash a filter step without its times, index, state, and warnings of its states."""
    kept = {name: value for name, value in step.items() if name not in ("t", "index", "state", "warnings", "timings")}
    if kept.get("forecast"):
        kept["forecast"] = [{name: value for name, value in point.items() if name != "t"} for point in kept["forecast"]]
    return digest(kept)


@dataclass(frozen=True)
class SeriesTruth:
    """Results of the filter for one series: joined digests of the steps, and the log-likelihood after each."""

    observations: Sequence[Row]
    digests: bytes
    log_likelihood: np.ndarray
    seed: int

    def __len__(self) -> int:
        return len(self.observations)


@dataclass(frozen=True)
class Mistake:
    """A wrong reply; `skipped` replies before it are missing."""

    kind: str
    example: str
    skipped: int = 0


class StepChecker:
    """Checks the replies of one stream or request in order."""

    def __init__(self, truth: SeriesTruth, origin: float, horizon: Sequence[float] = (), name: str = "series") -> None:
        self._truth = truth
        self._origin = origin
        self._horizon = tuple(horizon)
        self._name = name
        self.position = 0

    def check(self, step: dict[str, Any]) -> Mistake | None:
        """Check the next reply, and return its first mistake or None."""
        index = step.get("index")
        expected = self.position
        if index != expected:
            where = f"{self._name} answered index {index!r} where {expected} was next"
            if not isinstance(index, int) or not expected < index < len(self._truth):
                return Mistake("order", where)
            self.position = index + 1
            return Mistake("order", where, skipped=index - expected)
        self.position += 1
        t = self._origin + STEP * index
        if step.get("t") != t or not self._forecast_times_fit(step, t):
            return Mistake("time", f"{self._name} at index {index} answered the times of another stream or step")
        if step_digest(step) != self._truth.digests[DIGEST_BYTES * index : DIGEST_BYTES * (index + 1)]:
            return Mistake("numbers", f"{self._name} at index {index} has other numbers than alone")
        return None

    def check_end(self, summary: dict[str, Any], sent: int) -> list[Mistake]:
        """Check the terminal reply after `sent` observations."""
        found = []
        if self.position != sent:
            found.append(Mistake("count", f"{self._name} answered {self.position} of {sent} observations"))
        if "steps" in summary and isinstance(summary["steps"], int) and summary["steps"] != sent:
            found.append(Mistake("count", f"{self._name} counts {summary['steps']} steps of {sent}"))
        truth = float(self._truth.log_likelihood[sent - 1]) if sent else 0.0
        value = summary.get("log_likelihood")
        if not isinstance(value, int | float) or not math.isclose(
            value, truth, rel_tol=LIKELIHOOD_TOLERANCE, abs_tol=LIKELIHOOD_TOLERANCE
        ):
            found.append(Mistake("likelihood", f"{self._name} has log-likelihood {value!r} after {sent}, not {truth}"))
        return found

    def _forecast_times_fit(self, step: dict[str, Any], t: float) -> bool:
        points = step.get("forecast") or ()
        if not self._horizon:
            return not points
        return len(points) == len(self._horizon) and all(
            point.get("t") == t + lead for point, lead in zip(points, self._horizon, strict=True)
        )


@dataclass(frozen=True)
class TextTruth:
    """One generation: request body, digests of the token objects, and fields of the terminal event."""

    body: bytes
    tokens: tuple[bytes, ...]
    ending: dict[str, Any]


class TextChecker:
    """Checks the events of one streamed generation in order."""

    def __init__(self, truth: TextTruth, name: str) -> None:
        self._truth = truth
        self._name = name
        self.position = 0

    def check(self, event: dict[str, Any]) -> Mistake | None:
        """Check the next token event, including the terminal one."""
        expected, self.position = self.position, self.position + 1
        if event.get("index") != expected + 1:
            self.position = event["index"] if isinstance(event.get("index"), int) else self.position
            return Mistake("order", f"{self._name} sent token {event.get('index')!r} where {expected + 1} was next")
        if expected >= len(self._truth.tokens) or digest(event.get("token")) != self._truth.tokens[expected]:
            return Mistake("token", f"{self._name} has another token at {expected + 1} than alone")
        return None

    def check_end(self, event: dict[str, Any]) -> list[Mistake]:
        """Check the summary in the terminal event."""
        found = []
        if self.position != len(self._truth.tokens):
            found.append(Mistake("count", f"{self._name} sent {self.position} of {len(self._truth.tokens)} tokens"))
        details = event.get("details") or {}
        said = {name: details.get(name) for name in self._truth.ending if name != "generated_text"}
        if {"generated_text": event.get("generated_text"), **said} != self._truth.ending:
            found.append(Mistake("text", f"{self._name} ended with another text or other details than alone"))
        return found
