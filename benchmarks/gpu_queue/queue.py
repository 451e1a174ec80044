"""Run parts one after the other, each in a process with a time limit. Finished parts are not repeated."""

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
# Time between the termination request and the kill of a part that ignores it.
GRACE_SECONDS: Final = 25.0
# The exit code of a part that was stopped and continues when it is run again (EX_TEMPFAIL).
UNFINISHED: Final = 75
DONE: Final = "done"


@dataclass(frozen=True)
class Part:
    """One process.

    Attributes:
        seconds: Time after which it is asked to end (SIGTERM).
        least: It is not started with less time left.
        result: File in the output folder, written by the part, whose missing commit is filled in.
    """

    name: str
    command: Sequence[str]
    seconds: float
    least: float
    environment: Mapping[str, str] | None = None
    result: str | None = None


def run_part(part: Part, out: Path, seconds: float, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a process for at most `seconds`, with its output in NAME.log. Return its result."""
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
    """Run unfinished parts, and write the record as each part ends.

    Args:
        seconds: Total time. A part gets the remaining time if that is less than its limit.
        commit: Commit of the code, if this is not a checkout.

    Returns:
        The record: for each part its status (done, unfinished, out of time, failed, left out), exit code and seconds.
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
    """Fill in the commit of a part's result that was measured without a checkout."""
    path = out / (part.result or "")
    if part.result is None or not path.is_file():
        return
    document = json.loads(path.read_text())
    if document.get("commit") is None:
        write_result(path, {**document, "commit": commit})
