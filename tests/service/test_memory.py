"""The budget of memory: what is leased, refused and given back, and how large it is."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rfa.service import memory
from rfa.service.errors import STATUS, Overloaded
from rfa.service.machine import ProcessMemory, memory_bytes, process_memory
from rfa.service.memory import (
    DEFAULT_BUDGET_BYTES,
    LARGE_SHARE,
    MIB,
    SMALL_BYTES,
    MemoryBudget,
    largest_request_bytes,
    request_memory,
)
from rfa.service.settings import ConfigurationError, Settings

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
HELD = ProcessMemory(own=250 * MIB, mapped=150 * MIB)


def settings(**given: Any) -> Settings:
    return Settings(bundles=(), **given)


def test_what_does_not_fit_is_refused_and_what_is_held_stays() -> None:
    refusals: list[None] = []
    budget = MemoryBudget(100, lambda: refusals.append(None))
    with budget.take(60) as first:
        with pytest.raises(Overloaded) as refused:
            budget.take(41)
        assert STATUS[type(refused.value)] == 429
        assert refused.value.code == "memory_exhausted"
        assert int(refused.value.headers()["Retry-After"]) >= 1
        with pytest.raises(Overloaded):
            first.grow(41)
        assert (budget.leased_bytes, first.size, len(refusals)) == (60, 60, 2)
        first.grow(40)
        first.shrink(30)
        assert budget.leased_bytes == 70
    for late in (first.release, lambda: first.grow(20), lambda: first.shrink(5)):  # of a lease that has ended
        late()
        assert (budget.leased_bytes, first.size) == (0, 0)


def test_large_requests_leave_memory_for_small_ones() -> None:
    limit = 40 * SMALL_BYTES
    budget = MemoryBudget(limit)
    large = []
    with pytest.raises(Overloaded):
        while True:
            lease = budget.take(0)
            lease.grow(3 * SMALL_BYTES)
            large.append(lease)
    assert len(large) >= 10
    small = [budget.take(SMALL_BYTES) for _ in range(8)]
    with pytest.raises(Overloaded):
        small[0].grow(1)
    assert budget.leased_bytes <= limit
    large[0].shrink(2 * SMALL_BYTES)  # a small one now
    small[0].grow(SMALL_BYTES)
    for lease in (*large, *small):
        lease.release()
    assert budget.leased_bytes == 0
    budget.take(int(LARGE_SHARE * limit))


@pytest.mark.anyio
async def test_memory_is_returned_while_more_is_held_than_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first time is in use may be free the next time, and nothing else gives it back."""
    held = iter([300, 304, 400, 390, 308, 299, 350])
    seen: list[int] = []

    def hold() -> ProcessMemory:
        if (own := next(held, None)) is None:
            raise asyncio.CancelledError
        seen.append(own)
        return ProcessMemory(own=own * MIB, mapped=0)

    returned: list[int] = []
    library = SimpleNamespace(malloc_trim=lambda _: returned.append(seen[-1] if seen else 0))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(memory, "TRIM_SECONDS", 0)
    monkeypatch.setattr(memory, "process_memory", hold)
    with pytest.raises(asyncio.CancelledError):
        await memory.return_free_memory()
    assert returned == [0, 400, 390, 350]


def test_threads_never_hold_more_than_the_limit_together() -> None:
    budget = MemoryBudget(10)
    most = 0

    def work(_: int) -> int:
        nonlocal most
        got = 0
        for _ in range(2_000):
            try:
                with budget.take(3):
                    most = max(most, budget.leased_bytes)
                    got += 1
            except Overloaded:
                pass
        return got

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) > 0
    assert 0 < most <= 10
    assert budget.leased_bytes == 0


@pytest.mark.parametrize(
    ("machine", "processes", "budget_bytes"),
    [
        (24_000 * MIB, 2, DEFAULT_BUDGET_BYTES),
        (2_048 * MIB, 1, DEFAULT_BUDGET_BYTES),
        (1_000 * MIB, 2, 75 * MIB),
        (4_096 * MIB, 8, 140.85 * MIB),
    ],
)
def test_the_default_is_bounded_by_the_share_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, machine: int, processes: int, budget_bytes: int
) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda: machine)
    assert request_memory(settings(processes=processes), HELD) == pytest.approx(budget_bytes, abs=1)


def test_larger_bodies_have_a_larger_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda: 24_000 * MIB)
    given = settings(processes=1, max_body_bytes=50 * MIB)
    budget_bytes = request_memory(given, HELD)
    assert budget_bytes > DEFAULT_BUDGET_BYTES
    lease = MemoryBudget(budget_bytes).take(largest_request_bytes(given.limits))
    assert lease.size > 100 * MIB


@pytest.mark.parametrize("given", [{"max_memory": 420 * MIB}, {"processes": 5}, {"max_body_bytes": 200 * MIB}])
def test_a_budget_smaller_than_one_request_is_refused(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda: 2_048 * MIB)
    with pytest.raises(ConfigurationError, match="RFA_MAX_"):
        request_memory(settings(**{"processes": 1, **given}), HELD)


def test_what_models_may_come_to_keep_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in (0, 32):  # of an explicit limit, too
        assert request_memory(settings(max_memory=3_000 * MIB), HELD, kept_bytes=kept * MIB) == (2_600 - kept) * MIB
    monkeypatch.setattr(memory, "memory_bytes", lambda: 4_096 * MIB)
    assert request_memory(settings(processes=8), HELD, kept_bytes=32 * MIB) == pytest.approx(108.85 * MIB, abs=1)


# What the kernel shows, by how the groups are mounted: (own groups, files) → limit.
GROUPS = {
    "version 2, the innermost": ("0::/a/b\n", {"a/b/memory.max": "1000\n", "a/memory.max": "2000\n"}, 1_000),
    "version 2, an outer one": ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "2000\n"}, 2_000),
    "version 2, seen from a container": ("0::/\n", {"memory.max": "3000\n"}, 3_000),
    "version 2, the path of the host": ("0::/docker/x\n", {"memory.max": "3000\n"}, 3_000),
    "version 1": ("4:memory:/x\n1:cpu:/x\n", {"memory/x/memory.limit_in_bytes": "4000\n"}, 4_000),
    "version 1, an outer one": (
        "4:cpu,memory:/x/y\n",
        {"memory/x/y/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.limit_in_bytes": "5000\n"},
        5_000,
    ),
    "no limit": ("0::/a\n", {"a/memory.max": "max\n"}, PHYSICAL),
    "another controller's file": ("1:cpu:/x\n", {"cpu/x/memory.limit_in_bytes": "7\n"}, PHYSICAL),
    "nonsense": ("0::/a\n", {"a/memory.max": "much\n"}, PHYSICAL),
}


@pytest.mark.parametrize("case", GROUPS)
def test_control_groups_bound_the_memory(tmp_path: Path, case: str) -> None:
    own, files, limit = GROUPS[case]
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cgroup").write_text(own)
    for name, content in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    assert memory_bytes(tmp_path / "proc", tmp_path / "groups") == limit


def test_what_a_process_holds_is_its_own_or_of_files(tmp_path: Path) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "statm").write_text("900 70 30 5 0 60 0\n")
    assert process_memory(tmp_path) == ProcessMemory(own=40 * page, mapped=30 * page)
    assert process_memory(tmp_path / "absent") == ProcessMemory(0, 0)
    measured = process_memory()
    assert measured.mapped > 0 and 10 * MIB < measured.own < PHYSICAL
