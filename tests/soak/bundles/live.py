"""Bad bundles are offered to a server that serves: it must refuse them, lose no process, and answer as before."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.soak.bundles.case import Case
from tests.soak.faults.server import Server
from tests.waiting import PATIENCE, TooLate, wait_until

DECIDED = re.compile(r" reload (committed|refused|aborted), of ")
# One process is asked to reload, and the one beside it: what is refused must be refused for both.
PROCESSES = 2
PAIRS = {"observations": [[0.5, -0.2], [0.4, 0.1], [0.1, 0.3]], "seed": 7}
QUESTIONS = {
    "books": ("/generate", {"inputs": "It is a truth", "parameters": {"max_new_tokens": 4, "seed": 7}}),
    "linear": ("/filter", PAIRS),
    "oscillator": ("/filter", PAIRS),
}
# What in an answer is of the model; the rest is of the request.
OF_THE_MODEL = ("steps", "generated_text")


@dataclass
class Offered:
    """What came of all offers.

    Attributes:
        outcomes: what the server said, by number of offers.
        taken: cases that it took.
        processes_lost: server processes that were not the same after an offer as before it.
        other_answers: cases after whose refusal an answer was not what it was, or did not come.
    """

    outcomes: dict[str, int] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    processes_lost: int = 0
    other_answers: list[str] = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        """For the file of results."""
        return {
            "outcomes": dict(sorted(self.outcomes.items())),
            "taken": self.taken,
            "processes_lost": self.processes_lost,
            "other_answers": self.other_answers,
        }


def offer(chosen: Sequence[Case], bundles: Path, folder: Path, tick: Callable[[], object]) -> Offered:
    """Offer each case to a server of its bundle.

    Args:
        bundles: where the good ones are.
        folder: for what is served, and logs.
    """
    offered = Offered()
    for name in sorted({case.bundle for case in chosen}):
        home = folder / name
        served = home / "served" / name
        shutil.copytree(bundles / name, served)
        with Server(home, bundles=served, processes=PROCESSES, text_runtime="onnx") as server:
            stall = _Stall(server, served, bundles / name)
            for case in (case for case in chosen if case.bundle == name):
                stall.offer(case, offered)
                tick()
    return offered


class _Stall:
    """A server of one bundle."""

    def __init__(self, server: Server, served: Path, good: Path) -> None:
        self._server, self._served, self._good = server, served, good
        self._path, self._question = QUESTIONS[good.name]
        self._right = self._answer()
        if self._right is None:
            raise RuntimeError(f"{good.name} is not answered for")

    def offer(self, case: Case, offered: Offered) -> None:
        """Put the bad bundle in place of the good one, signal, and hold what is served to what was."""
        before = set(self._server.children())
        self._replace(case.apply)
        outcome = self._reload()
        offered.outcomes[outcome] = offered.outcomes.get(outcome, 0) + 1
        if outcome == "committed":
            offered.taken.append(str(case))
        elif self._answer() != self._right:
            offered.other_answers.append(str(case))
        offered.processes_lost += len(before - set(self._server.children()))
        if outcome == "committed":
            self._replace(lambda folder: None)
            if self._reload() != "committed" or self._answer() != self._right:
                raise RuntimeError(f"the server does not take the good bundle again after {case}")

    def _replace(self, spoil: Callable[[Path], object]) -> None:
        shutil.rmtree(self._served)
        shutil.copytree(self._good, self._served)
        spoil(self._served)

    def _reload(self) -> str:
        """What the server says of it; "silence" if nothing."""
        log = self._served.parents[1] / "log"
        at = log.stat().st_size
        self._server.send(signal.SIGHUP)
        decided: list[str] = []

        def is_decided() -> bool:
            with log.open("rb") as file:
                file.seek(at)
                decided.extend(DECIDED.findall(file.read().decode(errors="replace")))
            return bool(decided)

        try:
            wait_until(is_decided)
        except TooLate:
            return "silence"
        return decided[0]

    def _answer(self) -> Any:
        """What clients get, all of them the same; None where one gets another answer or none."""
        url = f"{self._server.url}{self._path}"
        found = []
        try:
            for _ in range(2 * PROCESSES):
                reply = httpx.post(url, json=self._question, timeout=PATIENCE).raise_for_status().json()
                found.append([reply[name] for name in OF_THE_MODEL if name in reply])
        except httpx.HTTPError:
            return None
        return found[0] if all(answer == found[0] != [] for answer in found) else None
