"""`python -m tests.soak.attacks`: run every attack, print a table and write results/attacks.json.

The exit code is 1 if a requirement is not met.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rfa.measured import RESULTS, git_commit, hardware, write_result
from tests.soak.attacks.catalogue import Attack, all_attacks
from tests.soak.attacks.conduct import (
    GRACE_SECONDS,
    LONGEST_ATTACK,
    RATE,
    SETTLE_SECONDS,
    STREAMS,
    Arena,
    conduct,
)
from tests.soak.live import Live

RESULT = RESULTS / "attacks.json"
SECONDS = 5.0
CALM_WINDOWS = 2
COLUMNS = "{:<30} {:>17} {:>25} {:>5} {:>8}  {}"


def chosen(attacks: Mapping[str, Attack], only: Sequence[str]) -> list[Attack]:
    """Return the attacks with these names or family numbers, by default all.

    Raises:
        ValueError: A name is unknown.
    """
    for name in only:
        if not any(name in (attack.name, str(attack.family)) for attack in attacks.values()):
            raise ValueError(f"there is no attack and no family {name!r}; --list names them")
    return [attack for attack in attacks.values() if not only or attack.name in only or str(attack.family) in only]


def row(name: str, entry: Mapping[str, Any]) -> str:
    """Return a row of the table."""
    rss, live, attacker = entry["rss_mb"], entry["live_ms"], entry["attacker"] or {}
    memory = f"{rss['before']:.0f} / {rss['peak']:.0f} / {rss['after']:.0f}"
    p99 = " / ".join(_ms(live[window]["p99"]) for window in ("calm", "attacked", "after"))
    sent = attacker.get("counts", {}).get("bytes sent", 0) / 1e6
    missed = [bar for bar, is_met in entry["bars"].items() if not is_met]
    outcome = "MISSED: " + "; ".join(missed) if missed else "ok"
    return COLUMNS.format(
        f"{entry['family']} {name}", memory, p99, f"{attacker.get('cpu_share', 0):.2f}", f"{sent:.1f}", outcome
    )


def table(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table with one attack per row."""
    titles = ("attack", "MB before/peak/after", "p99 ms calm/attack/after", "cpu", "MB sent", "outcome")
    return "\n".join([COLUMNS.format(*titles), *(row(name, entry) for name, entry in entries.items())])


def run(attacks: Sequence[Attack], seconds: float, keep: Path) -> dict[str, Any]:
    """Run attacks, and store each result immediately."""
    document = {"attacks": {}, **(json.loads(keep.read_text()) if keep.is_file() else {})}
    document |= {"hardware": hardware(), "seconds": seconds}
    longest = CALM_WINDOWS * seconds + max(seconds, LONGEST_ATTACK) + GRACE_SECONDS + 2 * SETTLE_SECONDS
    done: dict[str, Any] = {}
    with Live(longest, STREAMS, RATE) as live, Arena() as arena, tqdm(attacks, unit="attack") as bar:
        live.wait_until_prepared()
        for attack in bar:
            bar.set_description(attack.name)
            verdict = conduct(attack, arena, live, seconds)
            done[attack.name] = {"commit": git_commit(), **verdict.to_document()}
            document["attacks"][attack.name] = done[attack.name]
            write_result(keep, document)
            bar.write(row(attack.name, done[attack.name]))
    return done


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.attacks", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="attacks, or numbers of families")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of calm, of attack and of what follows, each")
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    parser.add_argument("--out", type=Path, default=RESULT, help="JSON; entries of other attacks there stay")
    arguments = parser.parse_args()
    try:
        attacks = chosen(all_attacks(), arguments.only)
    except ValueError as error:
        parser.error(str(error))
    if arguments.list:
        print("\n".join(f"{attack.family:>2} {attack.name:<30} {attack.about}" for attack in attacks))
        return 0
    signal.signal(signal.SIGTERM, _stop)  # as for Ctrl-C, end started processes
    done = run(attacks, arguments.seconds, arguments.out)
    print(table(done))
    missed = [name for name, entry in done.items() if not entry["passed"]]
    print(f"{len(done) - len(missed)} of {len(done)} attacks held", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
