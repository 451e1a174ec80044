"""Kills a watch again and again: `python -m tests.library.watch.kills KILLS FOLDER`, which prints what was wrong.

Each watch is a child of this process, forked once everything is compiled. Its clock is that of the process, much
faster. At the end a watch that was never killed gives the rows to compare with.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rfa.library.watch.prometheus import SourceError
from rfa.library.watch.storage import FileStorage
from rfa.library.watch.store import Store
from rfa.library.watch.watch import Watch
from tests.library.watch.fake_prometheus import fake_prometheus, wave
from tests.library.watch.running import START, STEP, Running, config_for

HOSTS = ("a", "b", "c")
# Steps of the watch per second of the process.
SPEED = 60.0


def value(name: str, t: float) -> float | None:
    """Waves with gaps and a level that changes."""
    if int(t / STEP) % 97 == ord(name) % 97:
        return None
    return wave(name, t) + (40 if int(t / STEP) % 200 > 150 else 0)


def watch_until_killed(url: str, folder: Path, begin: float) -> None:
    """A watch that writes its rows to a file, as fast as it can."""
    config = config_for(url)
    with (folder / "rows").open("ab") as out:
        watch = Watch(
            config, Store(FileStorage(folder / "state")), lambda: START + STEP * SPEED * (time.monotonic() - begin)
        )
        watch.sinks.append(_lines(out))
        while True:
            watch.pull()


def _lines(out: Any) -> Any:
    from rfa.library.watch.sink import JsonLines

    return JsonLines(only_alarms=False, out=out)


def main(kills: int, folder: Path) -> None:
    """Kill, then compare."""
    chance = random.Random(kills)
    reader, writer = os.pipe()
    server = os.fork()
    if server == 0:
        with fake_prometheus() as found:
            found.value = value
            os.write(writer, found.url.encode())
            signal.pause()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        url = os.read(reader, 200).decode()
        for k in range(2):  # the second compiles nothing
            begin, warm = time.monotonic(), Running(config_for(url), folder / f"warm{k}")
            warm.step(3)
            warm.abandon()
        took, begin, died = time.monotonic() - begin, time.monotonic(), 0
        for _ in range(kills):
            child = os.fork()
            if child == 0:
                try:
                    watch_until_killed(url, folder, begin)
                except SourceError:
                    os._exit(3)
                finally:
                    os._exit(4)
            time.sleep(chance.uniform(0.3, 3.0) * max(took, 0.05))
            os.kill(child, signal.SIGKILL)
            died += os.waitpid(child, 0)[1] == signal.SIGKILL
        compare(url, folder, died)
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def compare(url: str, folder: Path, died: int) -> None:
    """Print how the rows of the killed watches differ from those of one that was not."""
    lines = (folder / "rows").read_bytes().split(b"\n")
    # Only a line that a kill cut short is none of JSON; the same row comes again.
    rows, cut = [], 0
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            cut += bool(line)
    last = Running(config_for(url), folder / "state")
    # The last watch may have written rows that it did not confirm.
    end = max([START, *(cursor for cursor in last.watch.cursors.values()), *(row["t"] for row in rows)]) + 3 * STEP
    last.now = end
    last.step(1)
    found: dict[tuple[str, float], Any] = {}
    different = 0
    for row in [*rows, *last.rows]:
        key = row["labels"]["host"], row["t"]
        different += found.setdefault(key, row) != row
    whole = Running(config_for(url))
    whole.now = min(t for _, t in found) - STEP  # where the history ended
    whole.step(1)
    whole.now = end
    whole.step(1)
    expected = {(row["labels"]["host"], row["t"]): row for row in whole.rows}
    lost = sum(key not in found for key in expected)
    wrong = sum(expected.get(key) != row for key, row in found.items())
    last.abandon()
    result = {"killed": died, "rows": len(found), "repeated": len(rows) + len(last.rows) - len(found), "cut": cut}
    print(json.dumps({**result, "lost": lost, "different": different, "wrong": wrong}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
