"""The documents: examples run as shown, links resolve, and cited formulas exist."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import rfa
from docs.site import commands_page, http_page, notebook, python_page, settings_page
from rfa.service.app import create_app
from rfa.service.openapi import openapi_of
from rfa.service.settings import FIELDS, Settings
from tests.documented import GOES_ON, ROOT, SLOW, furnish, run_document, serving, with_replies
from tests.readme_blocks import parse_blocks

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
READ = [ROOT / "README.md", *PAGES]
LINKING = [*READ, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "export" / "README.md"]
# `tests/deploy` expects the commands of the stack here.
OPERATED = DOCS / "deploy" / "README.md"


# Guides whose examples take more than 3 s. `make test` runs those of README, the quickstarts and the other guides.
LONG_GUIDES = ("backtest", "events", "examples", "many", "python", "systems", "text", "training", "watch")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def examples() -> list[object]:
    """Return a page with its quick blocks, and again with all blocks if it has slow ones."""
    found: list[object] = []
    for page in READ:
        blocks = [block for block in parse_blocks(page.read_text(encoding="utf-8")) if block.is_run]
        slow = [block for block in blocks if block.mark.startswith(SLOW)]
        if len(blocks) > len(slow):
            is_long = page.parent.name == "guides" and page.stem in LONG_GUIDES
            found.append(pytest.param(page, False, id=name_of(page), marks=[pytest.mark.slow] if is_long else []))
        if slow:
            found.append(pytest.param(page, True, id=f"{name_of(page)} with slow ones", marks=pytest.mark.slow))
    return found


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as found:
        yield found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("page", "with_slow"), examples())
def test_every_example_runs_and_every_reply_is_the_one_shown(
    page: Path, with_slow: bool, address: str, tmp_path: Path
) -> None:
    furnish(tmp_path)
    text = page.read_text(encoding="utf-8")
    outcome = run_document(text, address, tmp_path, with_slow=with_slow)
    if os.environ.get("RFA_UPDATE_DOCS"):
        page.write_text(with_replies(text, outcome.replies), encoding="utf-8")
    assert not outcome.wrong, "\n".join(outcome.wrong)


CELLS = """
```python
with open("ran", "a") as file:
    print("once", file=file)
print("a cell", end="")
```
<!-- reply -->
```text
a cell
```
<!-- goes on -->
```python
print(file.name)
```
<!-- reply -->
```text
ran
```
"""


def test_a_cell_goes_on_where_the_one_before_it_ended_and_each_runs_once(tmp_path: Path) -> None:
    outcome = run_document(CELLS, "127.0.0.1:1", tmp_path, with_slow=False)
    assert (outcome.wrong, outcome.replies) == ([], ["a cell\n", "ran\n"])
    assert (tmp_path / "ran").read_text() == "once\n"
    with pytest.raises(AssertionError, match="where nothing ended"):
        run_document(CELLS[CELLS.index("<!-- goes on") :], "127.0.0.1:1", tmp_path, with_slow=False)


def test_the_notebook_has_the_cells_and_outputs_of_the_page_that_was_run() -> None:
    made = notebook.notebook(notebook.PAGE.read_text(encoding="utf-8"))
    if os.environ.get("RFA_UPDATE_DOCS"):
        notebook.NOTEBOOK.write_text(made, encoding="utf-8")
    assert notebook.NOTEBOOK.read_text(encoding="utf-8") == made
    cells = json.loads(made)["cells"]
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    run = [block.body.rstrip() for block in parse_blocks(notebook.PAGE.read_text(encoding="utf-8")) if block.is_run]
    assert code == run
    assert not any("```" in cell["source"] for cell in cells)


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_what_is_not_run_says_why(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in parse_blocks(text):
        assert block.mark in ("", "reply", GOES_ON) or re.fullmatch(r"(not run|slow): \w.+", block.mark), (
            f"line {block.line}"
        )
    if page != OPERATED:
        commands = re.findall(r"^ {4}(?:rfa|curl|pip|make|python|docker|RFA_\w+=\S+) .*", text, re.MULTILINE)
        assert not commands, "commands stand in fences, where they are run"


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of the headings of a page, as in GitHub and Sphinx."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(<?([^)\s>]+)", re.sub(r"`[^`\n]*`", "", text)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^```\{toctree\}.*?^```", (DOCS / "index.md").read_text(), re.MULTILINE | re.DOTALL)
    entries = {line for tree in listed for line in tree.splitlines()[1:-1] if line and not line.startswith(":")}
    assert entries >= {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES} - {"index"}


def test_every_field_of_a_frame_is_described() -> None:
    frames = dict(http_page.frame_schemas((*http_page.FRAMES_IN, *http_page.FRAMES_OUT)))
    fields = {f"{name}.{field}": facts for name, kind in frames.items() for field, facts in kind["properties"].items()}
    assert {"StreamObservation.y", "StreamReady.index", "StreamStepReply.state", "StreamDone.reason"} <= set(fields)
    assert [field for field, facts in fields.items() if not facts.get("description")] == []


def test_the_references_name_everything() -> None:
    paths = openapi_of(create_app(Settings()))["paths"]
    page = http_page.page()
    assert all(f"### {method.upper()} {path}\n" in page for path, found in paths.items() for method in found)
    names = python_page.page()
    assert all(f"}} rfa.{name}(" in names for name in rfa.__all__)
    settings = settings_page.page()
    assert all(f"| `RFA_{name.upper()}` |" in settings for name in FIELDS)
    commands = commands_page.page()
    assert all(f"## rfa {name}\n" in commands for name in ("serve", "filter", "train lm", "bench load"))


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        (
            "Sum.\n\n    Args:\n        a: one\n            of them.\n        b: x.\n",
            "*Args*\n\n- `a`: one of them.\n- `b`: x.",
        ),
        ("Sum.\n\n    Returns:\n        both `[N]`,\n        or none.\n", "*Returns*: both `[N]`, or none."),
        ("A page.\n\n    x = a * b\n\nUnits: none.", "A page.\n\n    x = a * b\n\nUnits"),
    ],
)
def test_sections_of_a_docstring_become_lists(docstring: str, expected: str) -> None:
    assert expected in python_page.markdown(docstring)


def test_every_formula_that_the_code_cites_is_on_the_page() -> None:
    """`docs/MATH.md §2 c`: a section of the page, and a point of it."""
    page = (DOCS / "MATH.md").read_text(encoding="utf-8")
    sections = {
        match[1]: match[2] for match in re.finditer(r"^## (\d+)\. .*\n((?:(?!^## ).*\n?)*)", page, re.MULTILINE)
    }
    cited = []
    for layer in (*(path.name for path in (ROOT / "rfa").iterdir() if path.is_dir()), "tests"):
        for file in (ROOT / layer).rglob("*.py"):
            text = " ".join(file.read_text(encoding="utf-8").split())
            assert "math page" not in text or file == Path(__file__), f"{file}: the page is docs/MATH.md"
            cited += [(file, *found) for found in re.findall(r"docs/MATH\.md,? §(\d+)(?: ([a-z])\b)?", text)]
    assert len(cited) >= 8
    for file, section, point in cited:
        assert section in sections, f"{file} cites §{section}"
        assert not point or f"({point})" in sections[section], f"{file} cites §{section} {point}"
