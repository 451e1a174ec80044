"""What an attack is, and all of them by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.soak.attacks.stage import Stage

Drive = Callable[[Stage], None]


@dataclass(frozen=True)
class Attack:
    """One client's misbehaviour.

    Attributes:
        family: number of the finding in the issue.
        about: what it does, in a line.
        drive: does it, in a process of its own.
        settings: of the server, where not the default ones.
        key: API key of the honest clients.
        seconds: the longest that it lasts; None is as long as everything else.
        is_live_judged: whether live answers must stay quick; not where a server process is stopped on purpose.
        may_replace: whether a server process may be replaced.
    """

    name: str
    family: int
    about: str
    drive: Drive
    settings: Mapping[str, object] = field(default_factory=dict)
    key: str | None = None
    seconds: float | None = None
    is_live_judged: bool = True
    may_replace: bool = False


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


def all_attacks() -> Mapping[str, Attack]:
    """Every attack, by name, families in order."""
    from tests.soak.attacks import bodies, browsers, flow, framing, manners, prompts, replies, valid  # noqa: F401

    return dict(sorted(ATTACKS.items(), key=lambda item: item[1].family))
