"""Seats of state: no trace of a former owner, no owner twice, stale handles refused, memory as computed."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.runtime.pool import IS_LINUX, PoolFull, PoolSlot, StaleSlot, StateField, StatePool

FIELDS = {"mean": StateField((2,), "float32"), "grid": StateField((3, 4), "float64"), "count": StateField((), "int64")}


def leaks(pool: StatePool, operations: int, seed: int = 0) -> list[str]:
    """Random acquires, writes and releases by owners who each sign their seat; every irregularity by name.

    Handles of released seats are tried again now and then.
    """
    rng = np.random.default_rng(seed)
    owned: dict[PoolSlot, int] = {}
    retired: list[PoolSlot] = []
    found: list[str] = []
    for owner in range(1, operations + 1):
        if owned and (len(owned) == pool.capacity or rng.random() < 0.5):
            slot = list(owned)[rng.integers(len(owned))]
            if any(np.any(value != owned[slot]) for value in pool.read(slot).values()):
                found.append("another owner's signature")
            pool.release(slot)
            retired.append(slot)
            del owned[slot]
        else:
            slot = pool.acquire()
            if any(np.any(value) for value in pool.read(slot).values()):
                found.append("not zero on acquire")
            if slot.row in {other.row for other in owned}:
                found.append("two owners")
            pool.write(slot, dict.fromkeys(FIELDS, owner))
            owned[slot] = owner
        if retired and rng.random() < 0.1:
            slot = retired[rng.integers(len(retired))]
            for use in (pool.read, pool.release, lambda handle: pool.rows([handle])):
                try:
                    use(slot)
                    found.append("a stale handle worked")
                except StaleSlot:
                    pass
        if pool.in_use != len(owned):
            found.append("wrong number of owners")
        if found:
            break
    released = [index for index in range(pool.capacity) if index not in {slot.row for slot in owned}]
    if any(np.any(array[released]) for array in pool.arrays.values()):
        found.append("a released seat is not zero")
    return found


def test_random_uses_leave_no_trace() -> None:
    assert leaks(StatePool(FIELDS, 37), 20_000) == []


def test_the_last_slot_is_the_last() -> None:
    pool = StatePool(FIELDS, 2)
    first, second = pool.acquire(), pool.acquire()
    with pytest.raises(PoolFull, match="all 2"):
        pool.acquire()
    pool.release(first)
    third = pool.acquire()
    assert third.row == first.row and third != first
    assert pool.in_use == 2
    with pytest.raises(StaleSlot):
        pool.release(first)
    pool.release(second)
    pool.release(third)
    assert pool.in_use == 0
    with pytest.raises(ValueError, match="capacity"):
        StatePool(FIELDS, 0)


def test_a_batch_of_slots() -> None:
    pool = StatePool(FIELDS, 8)
    slots = [pool.acquire() for _ in range(4)]
    assert pool.rows(slots).tolist() == [slot.row for slot in slots]
    assert pool.rows([]).tolist() == []
    with pytest.raises(ValueError, match="twice"):
        pool.rows([slots[0], slots[1], slots[0]])
    pool.release(slots[2])
    with pytest.raises(StaleSlot, match=str(slots[2].generation)):
        pool.rows(slots)


def test_memory_is_what_the_fields_say() -> None:
    pool = StatePool(FIELDS, 1000)
    assert pool.host_bytes_per_slot == 2 * 4 + 12 * 8 + 8 + 16
    bookkeeping: list[np.ndarray[Any, Any]] = [pool._generations, pool._free]
    held = sum(array.nbytes for array in (*pool.arrays.values(), *bookkeeping))
    assert held == 1000 * pool.host_bytes_per_slot


def test_slots_are_reused_before_new_ones_are_touched() -> None:
    pool = StatePool(FIELDS, 1_000_000)
    highest = 0
    for _ in range(100):
        slots = [pool.acquire() for _ in range(10)]
        highest = max(highest, *(slot.row for slot in slots))
        for slot in slots:
            pool.release(slot)
    assert highest == 9


def test_threads_share_the_free_list() -> None:
    pool = StatePool(FIELDS, 16)
    clashes: list[int] = []

    def work(owner: int) -> None:
        for _ in range(500):
            slots = [pool.acquire() for _ in range(4)]
            for slot in slots:
                pool.write(slot, dict.fromkeys(FIELDS, owner))
            clashes.extend(owner for slot in slots if np.any(pool.read(slot)["grid"] != owner))
            for slot in slots:
                pool.release(slot)

    threads = [threading.Thread(target=work, args=(owner,)) for owner in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == [] and pool.in_use == 0


@pytest.mark.skipif(not IS_LINUX, reason="the pages of a released seat are given back on Linux alone")
def test_a_large_slot_gives_its_memory_back_and_leaves_no_trace() -> None:
    """Rows begin and end within pages, which they share with their neighbours."""
    numbers = 50_001
    pool = StatePool({"large": StateField((numbers,), "float32"), "small": StateField((3,), "float32")}, 200)
    pages = Path("/proc/self/statm")

    def resident() -> int:
        return int(pages.read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    slots = [pool.acquire() for _ in range(100)]
    for number, slot in enumerate(slots, 1):
        pool.write(slot, {"large": number, "small": number})
    full = resident()
    assert full - before >= 100 * 4 * numbers
    for slot in slots[::2]:
        pool.release(slot)
    assert full - resident() >= 50 * (4 * numbers - 2 * mmap.PAGESIZE)
    for number, slot in enumerate(slots, 1):
        held = {name: array[slot.row] for name, array in pool.arrays.items()}
        assert all((values == (0 if number % 2 else number)).all() for values in held.values())
