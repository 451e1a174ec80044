"""A round of reloading, step by step: all or none, whoever refuses, dies, hangs or comes in the middle of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from rfa.runtime.bundle.documents import BundleError
from rfa.service.process.reloading import BundleStore, Reloader
from rfa.service.process.shared_status import SharedStatus, create_shared_status
from rfa.service.process.snapshot import Snapshot
from tests.waiting import until

pytestmark = pytest.mark.anyio


class Process:
    """A process that answers as the test says, and looks at the board as a request there would."""

    def __init__(self, server: Server, place: int) -> None:
        self.snapshot = server.reloader.current
        self.prepared: Snapshot | None = None
        self.has_ended = False
        self.outputs: list[str] = []
        self.asked = asyncio.Event()
        self.answer: Callable[[], str | None] | None = lambda: None
        self._server = server
        self._place = place
        self._loaded: dict[int, Snapshot] = {self.snapshot.generation: self.snapshot}

    @property
    def name(self) -> str:
        return f"server process {self._place}"

    async def prepare(self, snapshot: Snapshot) -> str | None:
        self.asked.set()
        assert snapshot.directory.is_dir(), "there is nothing left to load"
        self._server.order.append(self._place)
        await until(lambda: self.answer is not None)  # it hangs until the test lets it
        assert self.answer is not None
        reason = self.answer()
        if reason is None:
            self._loaded[snapshot.generation] = snapshot
        return reason

    async def send(self, kind: str) -> None:
        self.outputs.append(kind)

    @property
    def serves(self) -> str:
        """The version that a request here would get now; what it never loaded is a KeyError."""
        return self._loaded[self._server.board.generation].version


class Server:
    """Processes and bundles of a reloader."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.bundle = folder / "linear"
        self.bundle.mkdir()
        self.put("a")
        self.order: list[int] = []
        self.checked = asyncio.Event()
        self.check: Callable[[], None] = lambda: None
        self.outdated = 0
        self.board: SharedStatus = create_shared_status(1)
        home = folder / "home"
        home.mkdir()
        self.shelf = BundleStore([self.bundle], home, 1_000_000, self._check)
        self.reloader = Reloader(self.shelf, self.board, lambda: cast(Any, self.members), self._retire)
        self.members: list[Process] = []
        self._count = count

    def put(self, content: str) -> None:
        (self.bundle / "manifest.json").write_text(content)

    def add(self) -> Process:
        """A process comes to serve: it has loaded what was in force."""
        self.members.append(Process(self, len(self.members)))
        return self.members[-1]

    def lose(self, process: Process) -> None:
        """A process ends, as the supervisor would notice."""
        process.has_ended = True
        self.members.remove(process)

    async def begin(self) -> None:
        await self.reloader.begin()
        for _ in range(self._count):
            self.add()

    async def decided(self, rounds: int = 1) -> None:
        """Until so many rounds have ended."""
        await until(lambda: sum(self.outcomes().values()) >= rounds and not self.reloader._is_reloading)

    def outcomes(self) -> dict[str, float]:
        return {outcome: count for outcome, (count, _) in self.board.reloads().items() if count}

    def copies(self) -> set[str]:
        return {path.name for path in (self.folder / "home").iterdir()}

    async def _check(self, paths: Sequence[Path]) -> None:
        self.checked.set()
        self.check()

    def _retire(self) -> None:
        self.outdated += 1


@asynccontextmanager
async def running(folder: Path, count: int = 3) -> AsyncIterator[Server]:
    server = Server(folder, count)
    await server.begin()
    rounds = asyncio.create_task(server.reloader.run())
    try:
        yield server
    finally:
        rounds.cancel()
        with suppress(asyncio.CancelledError):
            await rounds


async def hold(server: Server, index: int) -> None:
    """Request a reload, and wait until the process with this index is asked and does not answer."""
    server.members[index].answer = None
    server.put("b")
    server.reloader.request()
    await server.members[index].asked.wait()


async def reload(server: Server, content: str) -> tuple[str, str]:
    """One round with other bundles: the versions before and now in force."""
    before = server.reloader.current.version
    rounds = sum(server.outcomes().values())
    server.put(content)
    server.reloader.request()
    await server.decided(int(rounds) + 1)
    return before, server.reloader.current.version


def check_none(server: Server, version: str, caplog: pytest.LogCaptureFixture, *words: str) -> None:
    """Nothing has changed, nothing is left, and one line says why."""
    assert {member.serves for member in server.members} == {version} == {server.reloader.current.version}
    assert len(server.copies()) == 1 and not any(member.prepared for member in server.members)
    assert all(member.outputs == ["abort"] for member in server.members)
    (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)
    assert version in line and all(word in line for word in words), line


async def test_all_processes_turn_at_one_store(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        seen: list[set[str]] = []
        commit = server.board.commit

        def look(generation: int) -> None:
            seen.append({member.serves for member in server.members})
            commit(generation)
            seen.append({member.serves for member in server.members})

        server.board.commit = look  # type: ignore[method-assign]
        before, after = await reload(server, "b")
        assert before != after and seen == [{before}, {after}]
        assert server.order == [0, 1, 2] and all(member.outputs == ["commit"] for member in server.members)
        assert server.outcomes() == {"committed": 1} and server.outdated == 1
        assert len(server.copies()) == 1 and server.reloader.current.directory.is_dir()


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_refusal_is_everybodys(tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as server:
        server.members[place].answer = lambda: "golden.json: differs"
        before, now = await reload(server, "b")
        assert now == before and server.outcomes() == {"refused": 1} and server.order == list(range(place + 1))
        check_none(server, before, caplog, f"server process {place}: golden.json: differs", "version")
        for member in server.members:
            member.answer, member.outputs = (lambda: None), []
        before, now = await reload(server, "c")
        assert now != before and {member.serves for member in server.members} == {now}


async def test_what_is_refused_before_any_process_reaches_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise BundleError("linear: step.onnx: does not end")

    async with running(tmp_path) as server:
        server.check = refuse
        before, now = await reload(server, "b")
        assert now == before and server.order == [] and server.outcomes() == {"refused": 1}
        check_none(server, before, caplog, "linear: step.onnx: does not end")
        caplog.clear()
        for member in server.members:
            member.outputs = []
        (server.bundle / "manifest.json").unlink()
        server.reloader.request()
        await server.decided(2)
        check_none(server, before, caplog, "does not contain manifest.json")


async def test_a_death_of_one_that_has_prepared_stops_the_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as server:
        first, *_, last = server.members

        def die_first() -> None:
            server.lose(first)

        last.answer = die_first
        before, now = await reload(server, "b")
        assert now == before and server.outcomes() == {"aborted": 1}
        check_none(server, before, caplog, "server process 0 exited")


async def test_a_failure_that_nobody_foresaw_ends_the_round_and_not_the_reloading(tmp_path: Path) -> None:
    def fail() -> str:
        raise ZeroDivisionError

    async with running(tmp_path) as server:
        server.members[1].answer = fail
        before, now = await reload(server, "b")
        assert now == before and server.outcomes() == {"aborted": 1}
        server.members[1].answer = lambda: None
        before, now = await reload(server, "c")
        assert now != before and {member.serves for member in server.members} == {now}


async def test_one_that_hangs_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rfa.service.process.reloading.PREPARE_SECONDS", 0.05)
    async with running(tmp_path) as server:
        server.members[2].answer = None
        before, now = await reload(server, "b")
        assert now == before and server.outcomes() == {"aborted": 1}
        check_none(server, before, caplog, "server process 2 did not load the bundles within 0.05 s")


async def test_one_that_comes_to_serve_in_the_middle_is_prepared_like_the_others(tmp_path: Path) -> None:
    async with running(tmp_path, 2) as server:
        await hold(server, 1)
        late = server.add()
        server.members[1].answer = lambda: None
        await server.decided()
        assert late.asked.is_set() and server.outcomes() == {"committed": 1}
        assert {member.serves for member in server.members} == {server.reloader.current.version}


async def test_one_that_is_gone_and_was_not_asked_yet_holds_nothing_up(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        await hold(server, 0)
        server.lose(server.members[2])
        server.members[0].answer = lambda: None
        await server.decided()
        assert server.outcomes() == {"committed": 1} and server.order == [0, 1]


async def test_requests_in_the_middle_of_a_round_are_one_more_and_the_last_files_win(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as server:
        await hold(server, 0)
        for content in ("c", "d", "e"):
            server.put(content)
            server.reloader.request()
        server.members[0].answer = lambda: None
        await server.decided(2)
        assert server.outcomes() == {"committed": 2} and len(server.copies()) == 1
        (copy,) = server.reloader.current.bundles
        assert (copy / "manifest.json").read_text() == "e"
        assert {member.serves for member in server.members} == {server.reloader.current.version}
