"""The contents of the README and the parser of document blocks; `test_docs.py` runs the blocks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.readme_blocks import differences, parse_blocks, pretty

ROOT = Path(__file__).resolve().parent.parent

README = ROOT / "README.md"
LARGEST_README_BYTES = 9_000
LARGEST_PICTURE_BYTES = 150_000


def test_the_readme_is_short_and_has_what_a_reader_needs_first() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.encode()) <= LARGEST_README_BYTES
    for needed in ("make serve", "make test", "/generate", "/filter"):
        assert needed in text
    replies = [block for block in parse_blocks(text) if block.is_reply]
    assert len(replies) == 4
    pictures = re.findall(r"!\[.+\]\((.+)\)", text)
    assert pictures
    assert all((ROOT / name).stat().st_size <= LARGEST_PICTURE_BYTES for name in pictures)


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
def test_a_reply_that_is_not_the_one_shown_is_reported(real: object) -> None:
    shown = json.loads(parse_blocks(EXAMPLE)[2].body)
    assert differences(shown, {"a": [1.00004, None], "timings": {"ms": 3}}) == []
    assert differences(shown, real) != []


@pytest.mark.parametrize("value", [{"a": [1, 2, {"b": "x" * 95}], "c": {}}, list(range(300)), {"k": [[0.5] * 9] * 9}])
def test_a_reply_is_written_in_short_lines_and_reads_back(value: object) -> None:
    text = pretty(value)
    assert json.loads(text) == value
    assert max(map(len, text.splitlines())) <= 110
