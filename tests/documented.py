"""Runs the examples of documents with a server, a folder, and a shell or interpreter for each block.

Interpreters are forked from a process that has imported the packages of the examples.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from tests.readme_blocks import Block, differences, parse_blocks, shown_as
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTED_ADDRESS = "127.0.0.1:8000"
START_SECONDS = 500
BLOCK_SECONDS = 240
# Marks a block that takes too long for `make test`, because it trains or compiles.
SLOW = "slow: "
# Marks a Python block that continues the previous ones, like a cell of a notebook.
GOES_ON = "goes on"
IMPORTED = (
    "huggingface_hub", "matplotlib.figure", "numba", "openai", "pandas", "pyarrow", "rfa.fitting.search", "rfa.library",
    "torch", "websockets.sync.client",
)  # fmt: skip
PYTHONS = multiprocessing.get_context("forkserver")
PYTHONS.set_forkserver_preload(list(IMPORTED))
# A line that no block prints.
BETWEEN = "-- the next cell --"


def environment() -> dict[str, str]:
    """Return the environment of a reader after `make test`, with its commands first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RFA_")}
    return {**ours, "PATH": path, "COLUMNS": "100"}


@contextmanager
def serving() -> Iterator[str]:
    """Yield the address of a server of the default bundles."""
    command = ["rfa", "serve", "--port", "0"]
    log = ""
    with subprocess.Popen(
        command,
        env=environment() | {"RFA_PROCESSES": "1"},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stderr is not None
        timer = threading.Timer(START_SECONDS, process.kill)
        timer.start()
        try:
            for line in process.stderr:
                log += line
                if found := re.search(r"serving .* on http://(\S+)", line):
                    break
            else:
                raise AssertionError(f"the server did not start:\n{log}")
            timer.cancel()
            # Nothing may fill a pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield found[1]
        finally:
            timer.cancel()
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


def furnish(folder: Path) -> None:
    """Provide the files that the documents read: the example series and the bundles of the checkout."""
    (folder / "docs").mkdir()
    for path in (ROOT / "docs").glob("*.csv"):
        (folder / "docs" / path.name).write_bytes(path.read_bytes())
    (folder / "bundles").symlink_to(ROOT / "bundles")


@dataclass
class Outcome:
    """Replies of a document: their differences from the shown replies, and the replies to show."""

    wrong: list[str]
    replies: list[str]


def run_block(block: Block, address: str, folder: Path, cells: Sequence[Block] = ()) -> list[str]:
    """Return the output of a block and of the cells that continue it.

    Raises:
        AssertionError: It failed.
    """
    body = f"print({BETWEEN!r}, flush=True)\n".join(part.body for part in (block, *cells))
    run = run_python if block.language == "python" else run_shell
    code, out, err = run(body.replace(DOCUMENTED_ADDRESS, address), folder)
    assert code == 0, f"line {block.line}: {err or out}"
    return out.split(f"{BETWEEN}\n")


def run_shell(body: str, folder: Path) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error."""
    result = subprocess.run(
        ["bash", "-euo", "pipefail"], input=body, env=environment(), cwd=folder, capture_output=True, text=True,
        timeout=BLOCK_SECONDS,
    )  # fmt: skip
    return result.returncode, result.stdout, result.stderr


def run_python(body: str, folder: Path) -> tuple[int | None, str, str]:
    """Return exit code (None after a timeout), standard output and standard error."""
    with tempfile.TemporaryDirectory() as name:
        out, err = Path(name, "out"), Path(name, "err")
        process = PYTHONS.Process(target=execute, args=(body, folder, environment(), out, err))
        process.start()
        process.join(BLOCK_SECONDS)
        process.kill()
        return process.exitcode, out.read_text(), err.read_text()


def execute(body: str, folder: Path, variables: dict[str, str], out: Path, err: Path) -> None:
    """Run code as a script in a separate process."""
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    exec(compile(body, "<block>", "exec"), {"__name__": "__main__"})


def cells_after(blocks: Iterable[Block]) -> list[Block]:
    """Return the cells that continue a block. All run in one interpreter, as in a notebook."""
    return list(takewhile(lambda block: block.mark == GOES_ON, (block for block in blocks if block.is_run)))


def run_document(text: str, address: str, folder: Path, *, with_slow: bool) -> Outcome:
    """Run the blocks of a document in order, and compare each shown reply with the real one.

    If slow blocks are skipped, their shown replies are kept.
    """
    output, outcome = None, Outcome([], [])
    blocks = parse_blocks(text)
    is_left_out = False
    outputs: list[str] = []
    for place, block in enumerate(blocks):
        if block.is_run:
            is_left_out = block.mark.startswith(SLOW) and not with_slow
        if block.is_reply and is_left_out:
            outcome.replies.append(block.body)
        elif block.is_run and not is_left_out:
            if block.mark != GOES_ON:
                outputs = run_block(block, address, folder, cells_after(blocks[place + 1 :]))
            assert outputs, f"line {block.line}: a cell that goes on where nothing ended"
            output = outputs.pop(0)
            is_shown = blocks[place + 1 : place + 2] and blocks[place + 1].is_reply
            assert is_shown or '"error":' not in output, f"line {block.line}: {output}"
        elif block.is_reply:
            assert output is not None, f"line {block.line}: a reply without a block that ran before it"
            real = output.replace(address, DOCUMENTED_ADDRESS)
            if block.language == "json":
                found = differences(json.loads(block.body), json.loads(real))
            else:
                found = [] if block.body == shown_as(block.language, real) else [f"shows other text than\n{real}"]
            outcome.wrong += [f"line {block.line}: {text}" for text in found]
            outcome.replies.append(shown_as(block.language, real))
    return outcome


def with_replies(text: str, replies: list[str]) -> str:
    """Return the document with its shown replies replaced by these, in order."""
    places = [block for block in parse_blocks(text) if block.is_reply]
    for block, body in reversed(list(zip(places, replies, strict=True))):
        text = text[: block.start] + body + text[block.end :]
    return text
