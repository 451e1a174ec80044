"""The class of attacks, and all attacks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tests.soak.answers import Answer
from tests.soak.attacks.stage import Stage

Drive = Callable[[Stage], None]
Look = Callable[[Stage, Answer], None]
# Valid statuses of an expensive request.
FAIR = frozenset({200, 413, 422, 429, 503})


@dataclass(frozen=True)
class Attack:
    """One client's misbehaviour.

    Attributes:
        family: Number of the finding in the issue.
        about: Description in a line.
        drive: Runs the attack, in its own process.
        seconds: Maximum duration. None is that of the run.
    """

    name: str
    family: int
    about: str
    drive: Drive
    seconds: float | None = None


ATTACKS: dict[str, Attack] = {}


def add(family: int, name: str, about: str, drive: Drive, **options: Any) -> None:
    """Add an attack. Options are fields of `Attack`."""
    ATTACKS[name] = Attack(name, family, about, drive, **options)


def attack(family: int, **options: Any) -> Callable[[Drive], Drive]:
    """Add an attack under its function's name."""

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
    """Return an attack that sends some requests in turn and checks each answer."""

    def drive(stage: Stage) -> None:
        requests = make()
        stage.begin()
        note = (lambda answer: None) if look is None else (lambda answer: look(stage, answer))
        stage.keep_asking(lanes, requests, claim, statuses, look=note, pause=pause)

    return drive


def all_attacks() -> Mapping[str, Attack]:
    """Return every attack by name, ordered by family."""
    from tests.soak.attacks import bodies, flow, framing, prompts, replies  # noqa: F401

    return dict(sorted(ATTACKS.items(), key=lambda item: item[1].family))
