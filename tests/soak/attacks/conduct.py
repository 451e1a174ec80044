"""Run attacks on a real server one after another, and check the requirements of each.

calm      well-behaved clients alone
attacked  with the attack
after     alone again, immediately after it
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.soak.attacks.catalogue import Attack
from tests.soak.attacks.memory import Memory, is_back
from tests.soak.faults.cast import ROOT
from tests.soak.faults.server import FaultError, Server
from tests.soak.faults.verdict import Verdict
from tests.soak.live import Latencies, Live, Seen, Span

STREAMS, RATE = 4, 50.0
MOST_BYTES = 700_000_000
MOST_GROWTH = 0.1
MOST_P99_MS = 50.0
RECOVERY_SECONDS = 60.0
# Time for the last answers of the attacker.
GRACE_SECONDS = 20.0
LONGEST_ATTACK = 30.0
SETTLE_SECONDS = 0.5
WARM_UP_VISITS = 8
MEGABYTE = 1e6
ATTACKER = (sys.executable, "-m", "tests.soak.attacks.attacker")
_ERROR_LINE = re.compile(r"^\S+ ERROR .*$", re.MULTILINE)

# Requests before an attack, so that memory allocated by the first request of a kind is not counted.
ORDINARY = (
    ("/filter", {"observations": [[1.0, 0.5], None], "levels": [0.5, 0.9], "horizon": [0.1], "samples": 2}),
    ("/filter", {"observations": [[1.0, 0.5]] * 200, "smooth": True}),
    ("/filter", {"model": "oscillator", "observations": [[1.0, 0.5]] * 50, "mode": "attention"}),
    ("/filter", {"observations": [[1.0, 0.5]] * 50, "stream": True}),
    ("/filter", {"model": "auto", "observations": [[1.0]] * 50}),
    ("/filter", {"model": "oscillator", "observations": [[1.0, 0.5]] * 50}),
    ("/generate", {"inputs": "It was the", "parameters": {"max_new_tokens": 8, "n": 2, "top_n_tokens": 2, "seed": 1}}),
    ("/generate", {"inputs": "It was the", "parameters": {"max_new_tokens": 8, "decode": "attention"}}),
    ("/v1/completions", {"prompt": ["It was", "She said"], "max_tokens": 8, "logprobs": 2}),
)


class Arena:
    """A server for attacks: the running one, unless an attack damaged it."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._server: Server | None = None

    def server(self) -> Server:
        """Return a running server that has answered requests of every kind.

        Raises:
            FaultError: It does not start.
        """
        if self._server is None:
            self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            self._server = Server(self.folder)
            self._server.start()
            warm_up(self._server.url)
        return self._server

    @property
    def folder(self) -> Path:
        """Return the folder of the running server."""
        assert self._folder is not None
        return Path(self._folder.name)

    @property
    def log(self) -> Path:
        """Return its log."""
        return self.folder / "log"

    def discard(self) -> None:
        """End the running server. The next attack gets a new one."""
        if self._server is not None:
            server, self._server = self._server, None
            with suppress(FaultError):
                server.__exit__(None, None, None)
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


class Attacker:
    """The process of an attack.

    Attributes:
        saw: Results, or None if it failed or did not end in time.

    Raises:
        RuntimeError: It does not start.
    """

    def __init__(self, attack: Attack, server: Server, seconds: float) -> None:
        self._process = subprocess.Popen(
            [*ATTACKER, attack.name, str(server.port), str(seconds)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self.end()
            raise RuntimeError(f"{attack.name} cannot begin")
        self.saw: dict[str, Any] | None = None

    def run(self, seconds: float) -> None:
        """Begin, and wait at most so long for the results."""
        with suppress(subprocess.TimeoutExpired, ValueError):
            out, _ = self._process.communicate("go\n", timeout=seconds)
            self.saw = json.loads(out)

    def end(self) -> None:
        """End the process, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextmanager
def attacking(attack: Attack, server: Server, seconds: float) -> Iterator[Attacker]:
    """Yield a prepared attacker that ends with the block."""
    attacker = Attacker(attack, server, seconds)
    try:
        yield attacker
    finally:
        attacker.end()


def warm_up(url: str) -> None:
    """Send every kind of request until every process has answered.

    Raises:
        FaultError: An ordinary request is not answered.
    """
    headers = {"Content-Type": "application/json"}
    for path, document in ORDINARY * WARM_UP_VISITS:
        request = urllib.request.Request(url + path, json.dumps(document).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=RECOVERY_SECONDS) as reply:
                reply.read()
        except urllib.error.HTTPError as error:
            raise FaultError(f"{path} answers {error.code} to an ordinary request: {error.read(300)!r}") from None


@dataclass(frozen=True)
class Course:
    """Records around one attack.

    Attributes:
        windows: Intervals by name.
        saw: Results of the attacker, or None if it did not end in time.
        opened: Number of opened live streams. seen: Records of the well-behaved clients.
        before, peaks, now: Bytes of each process.
        children: Process ids before and after. errors: Lines of the log.
    """

    windows: Mapping[str, Span]
    saw: dict[str, Any] | None
    opened: int
    seen: Seen
    before: Mapping[int, int]
    peaks: Mapping[int, int]
    now: Mapping[int, int]
    back_seconds: float
    children: tuple[set[int], set[int]]
    errors: list[str]


def conduct(attack: Attack, arena: Arena, live: Live, seconds: float) -> Verdict:
    """Run one attack. A damaged server is not used again."""
    course = _run(attack, arena, live, seconds)
    verdict = _judge(attack, course)
    if verdict.missed:
        arena.discard()
    return verdict


def _run(attack: Attack, arena: Arena, live: Live, seconds: float) -> Course:
    server = arena.server()
    length = attack.seconds or seconds
    earlier_errors = len(_errors(arena.log))
    children = set(server.children())
    with (
        Memory(server.children) as memory,
        attacking(attack, server, length) as attacker,
    ):
        opened = live.open(server.url)
        time.sleep(SETTLE_SECONDS)
        before = memory.mark()
        calm = span(lambda: time.sleep(seconds))
        attacked = span(lambda: attacker.run(length + GRACE_SECONDS))
        attacker.end()
        after = span(lambda: time.sleep(seconds / 2))
        seen = live.close()
        now = memory.wait_until_back(before, MOST_GROWTH, attacked.end + RECOVERY_SECONDS)
        back_seconds = time.monotonic() - attacked.end
        peaks = memory.peaks()
    return Course(
        {"calm": calm, "attacked": attacked, "after": after},
        attacker.saw,
        opened,
        seen,
        before,
        peaks,
        now,
        back_seconds,
        (children, set(server.children())),
        _errors(arena.log)[earlier_errors:],
    )


def span(act: Callable[[], object]) -> Span:
    """Run an action and return its interval."""
    begin = time.monotonic()
    act()
    return Span(begin, time.monotonic())


def _errors(log: Path) -> list[str]:
    return _ERROR_LINE.findall(log.read_text(errors="replace"))


def _judge(attack: Attack, course: Course) -> Verdict:
    """Return figures and requirements."""
    live = {name: Latencies.of(course.seen.samples, window) for name, window in course.windows.items()}
    visits = _visits(course)
    verdict = Verdict(
        {
            "family": attack.family,
            "about": attack.about,
            "attacker": course.saw,
            "rss_mb": {
                "before": _largest(course.before),
                "peak": _largest(course.peaks),
                "after": _largest(course.now),
                "back_within_seconds": round(course.back_seconds, 1),
            },
            "live_ms": {name: asdict(latencies) for name, latencies in live.items()},
            "live": _answers(course),
            "visits": visits,
            "log_errors": {
                "count": len(course.errors),
                "examples": [_without_time(line) for line in course.errors[:2]],
            },
        }
    )
    verdict.require("every live answer came", not course.seen.absent and not course.seen.errors)
    p99 = live["attacked"].p99
    verdict.require("live p99 <= 50 ms", p99 is not None and p99 <= MOST_P99_MS)
    verdict.require("/health answered within 1 s", not visits["missed"])
    verdict.require("every live answer right", not course.seen.wrong)
    verdict.require("live streams open", course.opened == STREAMS)
    verdict.require("memory of a process <= 700 MB", max(course.peaks.values(), default=0) <= MOST_BYTES)
    verdict.require("memory back within 10 %", is_back(course.before, course.now, MOST_GROWTH))
    verdict.require("no process died", course.children[0] == course.children[1])
    verdict.require("no error in the log", not course.errors)
    verdict.require("the attacker ended", course.saw is not None)
    verdict.require("the attack took place", bool(course.saw and course.saw["counts"].get("connections")))
    for text, claim in (course.saw or {"claims": {}})["claims"].items():
        verdict.require(text, not claim["broken"])
    return verdict


def _answers(course: Course) -> dict[str, Any]:
    seen = course.seen
    return {
        "streams": course.opened,
        "answers": len(seen.samples),
        "absent": seen.absent,
        "wrong": seen.wrong,
        "errors": seen.errors,
        "examples": seen.examples[:3],
        "generator_lateness_p99_ms": Latencies.of(seen.lateness, course.windows["attacked"]).p99,
    }


def _visits(course: Course) -> dict[str, Any]:
    attacked = course.windows["attacked"]
    missed = [what for at, what in course.seen.missed if attacked.holds(at)]
    return {"answered": sum(attacked.holds(at) for at, _ in course.seen.visits), "missed": missed[:10]}


def _largest(resident: Mapping[int, int]) -> float:
    return round(max(resident.values(), default=0) / MEGABYTE, 1)


def _without_time(line: str) -> str:
    """Return a log line without its time."""
    return line.partition(" ")[2][:200]
