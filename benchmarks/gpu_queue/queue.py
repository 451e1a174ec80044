"""Run parts one after the other, each a process of its own with a limit; what is finished is not run again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rfa.measured import HOME, git_commit, write_result

RECORD_FILE: Final = "queue.json"
# Between the request to end and the end of a part that does not follow it.
GRACE_SECONDS: Final = 25.0
# The exit code of a part that was stopped and goes on when it is run again (EX_TEMPFAIL).
UNFINISHED: Final = 75
DONE: Final = "done"


@dataclass(frozen=True)
class Part:
    """One process.

    Attributes:
        seconds: after which it is asked to end (SIGTERM). least: without so many left it is not begun.
        result: file in the output folder whose missing commit is filled in; the part has written it.
    """

    name: str
    command: Sequence[str]
    seconds: float
    least: float
    environment: Mapping[str, str] | None = None
    result: str | None = None


def run_part(part: Part, out: Path, seconds: float, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a process for at most `seconds`, its output in NAME.log; what became of it."""
    begun = time.monotonic()
    with (out / f"{part.name}.log").open("ab") as log:
        process = subprocess.Popen(
            part.command, cwd=HOME, env={**environment, **(part.environment or {})},
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        is_late = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            is_late = True
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
        finally:
            # The workers of a part must not outlive it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    status = DONE if code == 0 else "unfinished" if code == UNFINISHED else "out of time" if is_late else "failed"
    return {"status": status, "exit_code": code, "seconds": round(time.monotonic() - begun, 1)}


def run_queue(
    parts: Sequence[Part],
    out: Path,
    *,
    seconds: float,
    commit: str | None = None,
    environment: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Run what is not done yet, and write the record as each part ends.

    Args:
        seconds: of all of it. A part gets what is left where that is less than its limit.
        commit: of the code, where this is no checkout.

    Returns:
        the record: of each part its status (done, unfinished, out of time, failed, left out), exit code and seconds.
    """
    out.mkdir(parents=True, exist_ok=True)
    path, begun = out / RECORD_FILE, clock()
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    commit = git_commit() or commit
    for part in parts:
        if record.get(part.name, {}).get("status") == DONE:
            continue
        left = seconds - (clock() - begun) - GRACE_SECONDS
        if left < part.least:
            record[part.name] = {**record.get(part.name, {}), "status": "left out", "reason": f"{left:.0f} s were left"}
        else:
            print(f"{part.name}: at most {min(part.seconds, left):.0f} s", file=sys.stderr, flush=True)
            found = run_part(part, out, min(part.seconds, left), os.environ if environment is None else environment)
            record[part.name] = {**found, "commit": commit}
            _fill_commit(out, part, commit)
        write_result(path, record)
    return record


def _fill_commit(out: Path, part: Part, commit: str | None) -> None:
    """What a part measured where there was no checkout has the commit that was sent there."""
    path = out / (part.result or "")
    if part.result is None or not path.is_file():
        return
    document = json.loads(path.read_text())
    if document.get("commit") is None:
        write_result(path, {**document, "commit": commit})
