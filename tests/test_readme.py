"""Every example of the README, and of the page that took over from it, does what it says, against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from readme_blocks import Block, differences, parse_blocks, pretty, shown_as

ROOT = Path(__file__).resolve().parent.parent

README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "guides" / "examples.md")
LARGEST_README_BYTES = 9_000
LARGEST_PICTURE_BYTES = 150_000
DOCUMENTED_ADDRESS = "127.0.0.1:8000"
START_SECONDS = 120


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """What a reader has after `make test`: the commands of the environment first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RFA_")}
    return {**ours, "PATH": path, "COLUMNS": "100"}


@pytest.fixture(scope="module")
def address(environment: dict[str, str]) -> Iterator[str]:
    """A server of the default bundles on a free port."""
    process = subprocess.Popen(
        ["rfa", "serve", "--port", "0"],
        env=environment,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    assert process.stderr is not None
    log = ""
    for line in process.stderr:
        log += line
        if found := re.search(r"serving .* on http://(\S+)", line):
            break
    else:
        pytest.fail(f"the server did not start:\n{log}")
    timer.cancel()
    # Nobody may leave a pipe full.
    threading.Thread(target=process.stderr.read, daemon=True).start()
    yield found[1]
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)
    process.stderr.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run and may write: the documents of the checkout and nothing else."""
    place = tmp_path_factory.mktemp("readme")
    (place / "docs").mkdir()
    for path in (ROOT / "docs").iterdir():
        if path.is_file():
            (place / "docs" / path.name).write_bytes(path.read_bytes())
    (place / "bundles").symlink_to(ROOT / "bundles")
    return place


def test_the_readme_is_short_and_has_what_a_reader_needs_first() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.encode()) <= LARGEST_README_BYTES
    for needed in ("make serve", "make test", "/generate", "/filter"):
        assert needed in text
    replies = [block for block in parse_blocks(text) if block.is_reply]
    assert len(replies) == 3
    pictures = re.findall(r"!\[.+\]\((.+)\)", text)
    assert pictures
    assert all((ROOT / name).stat().st_size <= LARGEST_PICTURE_BYTES for name in pictures)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_does_not_run_says_why(page: Path) -> None:
    for block in parse_blocks(page.read_text(encoding="utf-8")):
        assert block.mark in ("", "reply") or re.fullmatch(r"not run: \w.+", block.mark), (
            f"line {block.line}: {block.mark}"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def run(block: Block, environment: dict[str, str], address: str, folder: Path) -> str:
    body = block.body.replace(DOCUMENTED_ADDRESS, address)
    command = [sys.executable, "-"] if block.language == "python" else ["bash", "-euo", "pipefail"]
    result = subprocess.run(
        command, input=body, env=environment, cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, f"line {block.line}: {result.stderr or result.stdout}"
    return result.stdout


def rewrite_replies(page: Path, outputs: list[str]) -> None:
    """Put the real replies, in order, into the page as it is now: it may have changed while the tests ran."""
    text = page.read_text(encoding="utf-8")
    replies = [block for block in parse_blocks(text) if block.is_reply]
    for block, body in reversed(list(zip(replies, outputs, strict=True))):
        text = text[: block.start] + body + text[block.end :]
    page.write_text(text, encoding="utf-8")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_runs_and_every_reply_is_the_one_shown(
    page: Path, environment: dict[str, str], address: str, folder: Path
) -> None:
    blocks = parse_blocks(page.read_text(encoding="utf-8"))
    output, wrong, outputs = None, [], []
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.is_run:
            output = run(block, environment, address, folder)
            is_shown = following is not None and following.is_reply
            assert is_shown or '"error":' not in output, f"line {block.line}: {output}"
        elif block.is_reply:
            assert output is not None, f"line {block.line}: a reply without a block that ran before it"
            if block.language == "json":
                found = differences(json.loads(block.body), json.loads(output))
            else:
                found = [] if block.body == shown_as(block.language, output) else [f"shows other text than\n{output}"]
            wrong += [f"line {block.line}: {text}" for text in found]
            outputs.append(shown_as(block.language, output))
    if os.environ.get("RFA_UPDATE_README"):
        rewrite_replies(page, outputs)
    assert not wrong, "\n".join(wrong)


EXAMPLE = """\
<!-- not run: it does not end -->
```bash
make serve
```
```bash
echo '{"a": [1.00004, null], "timings": {"ms": 3}}'
```
<!-- reply -->
```json
{"a": [1.0, null], "timings": {"ms": 9}}
```
"""


def test_blocks_are_found_with_their_marks() -> None:
    serve, echo, reply = parse_blocks(EXAMPLE)
    assert (serve.is_run, echo.is_run, reply.is_run) == (False, True, False)
    assert reply.is_reply
    assert EXAMPLE[reply.start : reply.end] == reply.body
    assert echo.body.startswith("echo")


@pytest.mark.parametrize(
    "real",
    [
        {"a": [1.01, None], "timings": {"ms": 9}},
        {"a": [1.0], "timings": {"ms": 9}},
        {"a": [1.0, 0], "timings": {"ms": 9}},
        {"a": [1.0, None]},
        {"a": [1.0, None], "timings": {"ms": 9}, "b": 1},
    ],
)
def test_a_reply_that_is_not_the_one_shown_is_told(real: object) -> None:
    shown = json.loads(parse_blocks(EXAMPLE)[2].body)
    assert differences(shown, {"a": [1.00004, None], "timings": {"ms": 3}}) == []
    assert differences(shown, real) != []


@pytest.mark.parametrize("value", [{"a": [1, 2, {"b": "x" * 95}], "c": {}}, list(range(300)), {"k": [[0.5] * 9] * 9}])
def test_a_reply_is_written_in_short_lines_and_reads_back(value: object) -> None:
    text = pretty(value)
    assert json.loads(text) == value
    assert max(map(len, text.splitlines())) <= 110
