"""What the tests reached of the code, and what they left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rfa.benchmarks.results_page.parts import Document, Facts, Shown, Table, percent

PARTS = ("lines", "branches")


def parts(document: Document) -> list[Table | Facts]:
    rooms: Mapping[str, Mapping[str, int]] = document["coverage"]
    total = Counter[str]()
    for room in rooms.values():
        total.update(room)
    rows = [(name, *(_share(room, of) for of in PARTS)) for name, room in (*rooms.items(), ("all", total))]
    skipped = list(document["skips"].items())
    return [
        Facts(document["tests"]),
        Table(("reached", *PARTS), rows),
        *([Table(("skipped because", "tests"), skipped)] if skipped else []),
    ]


def _share(room: Mapping[str, int], of: str) -> str:
    return percent(room[f"{of}_reached"] / room[of] if room[of] else None)


SHOWN = {"tests": Shown(parts)}
