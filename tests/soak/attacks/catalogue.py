"""What an attack is, and all of them by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tests.soak.attacks.answers import Answer
from tests.soak.attacks.stage import Stage

Drive = Callable[[Stage], None]
Look = Callable[[Stage, Answer], None]
# What may answer a costly request.
FAIR = frozenset({200, 413, 422, 429, 503})


@dataclass(frozen=True)
class Attack:
    """One client's misbehaviour.

    Attributes:
        family: number of the finding in the issue.
        about: what it does, in a line.
        drive: does it, in a process of its own.
        seconds: the longest that it lasts; None is as long as everything else.
    """

    name: str
    family: int
    about: str
    drive: Drive
    seconds: float | None = None


ATTACKS: dict[str, Attack] = {}


def add(family: int, name: str, about: str, drive: Drive, **options: Any) -> None:
    """Add an attack; options are fields of `Attack`."""
    ATTACKS[name] = Attack(name, family, about, drive, **options)


def attack(family: int, **options: Any) -> Callable[[Drive], Drive]:
    """Add a driver under its function's name."""

    def register(drive: Drive) -> Drive:
        about = (drive.__doc__ or "").strip().partition("\n")[0]
        add(family, drive.__name__.replace("_", "-"), about, drive, **options)
        return drive

    return register


def asking(
    make: Callable[[], Sequence[bytes]],
    lanes: int,
    claim: str,
    statuses: Set[int],
    *,
    look: Look | None = None,
    pause: float = 0.0,
) -> Drive:
    """A driver that asks some requests in turn, and looks at each answer."""

    def drive(stage: Stage) -> None:
        requests = make()
        stage.begin()
        note = (lambda answer: None) if look is None else (lambda answer: look(stage, answer))
        stage.keep_asking(lanes, requests, claim, statuses, look=note, pause=pause)

    return drive


def all_attacks() -> Mapping[str, Attack]:
    """Every attack, by name, families in order."""
    from tests.soak.attacks import bodies, flow, framing, prompts, replies  # noqa: F401

    return dict(sorted(ATTACKS.items(), key=lambda item: item[1].family))
