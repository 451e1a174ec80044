"""Compile kernels in separate processes, without the interpreter of the tests. Each entry results in a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]


class CompilationError(RuntimeError):
    """The compiler rejects a kernel, or its machine code has no loop with the work of a turn."""


def compiled_apart(
    worker: Sequence[str], entries: Sequence[str], *, jobs: int | None = None, triton: Path | None = None
) -> dict[str, Any]:
    """Return the JSON line of a worker module for each entry, with `jobs` processes (default: one per core).

    triton: a folder with another Triton than that of the environment.
    """
    count = max(1, min(jobs or len(os.sched_getaffinity(0)), len(entries)))
    with tqdm(total=len(entries), desc="compile", disable=len(entries) < 2) as bar, ThreadPoolExecutor(count) as pool:
        shares = [entries[i::count] for i in range(count)]
        parts = list(pool.map(lambda share: _compiled(worker, share, bar, triton), shares))
    return {
        entry: found
        for share, part in zip(shares, parts, strict=True)
        for entry, found in zip(share, part, strict=True)
    }


def _compiled(worker: Sequence[str], entries: Sequence[str], bar: tqdm, triton: Path | None) -> list[Mapping[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if triton is not None:
        environment["PYTHONPATH"] = str(triton)
    command = [sys.executable, "-m", *worker, *entries]
    found = []
    # A file, because a full pipe without a reader would block the process.
    with tempfile.TemporaryFile("w+") as complaints:
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                found.append(json.loads(line))
                bar.update()
        complaints.seek(0)
        complaint = complaints.read()
    if process.returncode != 0 or len(found) != len(entries):
        following = entries[len(found)] if len(found) < len(entries) else "the last kernel"
        raise CompilationError(f"compiling {following} failed: {complaint.strip()[-2000:]}")
    return found
