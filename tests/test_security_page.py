"""docs/SECURITY.md names existing tests, settings and files, and is linked."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from rfa.service.settings import FIELDS

ROOT = Path(__file__).resolve().parent.parent
PATH = ROOT / "docs" / "SECURITY.md"
PAGE = PATH.read_text()
LARGEST_PAGE_BYTES = 10_000
LINKED_FROM = ("README.md", "CONTRIBUTING.md", "docs/deploy/README.md")


def named_tests(page: str) -> list[tuple[str, str]]:
    """Return file and name of each named test. A name without a file belongs to the previous file."""
    found: list[tuple[str, str]] = []
    for file, name in re.findall(r"`([\w./-]*)::(\w+)`", page):
        found.append((file or found[-1][0], name))
    return found


@cache
def defined_in(file: str) -> frozenset[str]:
    """Return the definitions of a test file, or nothing if it does not exist."""
    path = ROOT / "tests" / file
    if not path.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_a_name_without_a_file_is_of_the_file_before_it() -> None:
    page = "| `a/test_b.py::test_c`, `::test_d` | `test_e.py` | `::test_f` |"
    assert named_tests(page) == [("a/test_b.py", "test_c"), ("a/test_b.py", "test_d"), ("a/test_b.py", "test_f")]


@pytest.mark.parametrize(("file", "name"), named_tests(PAGE))
def test_every_test_it_names_exists(file: str, name: str) -> None:
    assert Path(file).name.startswith("test_") and name.startswith("test_")
    assert name in defined_in(file)


def test_every_promise_has_its_test_but_the_one_that_a_job_keeps() -> None:
    rows = re.findall(r"^\|(.*)\|(.*)\|(.*)\|$", PAGE, flags=re.MULTILINE)
    promises = [row for row in rows if not set("".join(row)) <= set("-") and row[0].strip() != "guarantee"]
    assert len(promises) > 20
    assert [by for _, by, shown in promises if "::" not in shown] == [
        " `make audit` each week: `.github/workflows/supply-chain.yml` "
    ]


def test_every_setting_it_names_exists() -> None:
    named = set(re.findall(r"\bRFA_[A-Z_]+", PAGE))
    assert len(named) > 20
    assert named <= {f"RFA_{name.upper()}" for name in FIELDS}


def test_every_file_and_command_it_names_is_there() -> None:
    files = re.findall(r"`((?:[\w.-]+/)+[\w-]+\.\w+)`", PAGE)
    links = re.findall(r"\]\(([\w./-]+)\)", PAGE)
    assert files and links
    assert not [name for name in files if not (ROOT / name).is_file()]
    assert not [name for name in links if not (PATH.parent / name).is_file()]
    goals = re.findall(r"`make (\w+)`", PAGE)
    assert goals and not [goal for goal in goals if f"\n{goal}:" not in (ROOT / "Makefile").read_text()]
    assert all(importlib.util.find_spec(module) for module in re.findall(r"`python -m ([\w.]+)", PAGE))


@pytest.mark.parametrize("page", LINKED_FROM)
def test_it_is_found_from_the_other_pages(page: str) -> None:
    links = re.findall(r"\]\(([\w./-]+SECURITY\.md)\)", (ROOT / page).read_text())
    assert PATH in [((ROOT / page).parent / link).resolve() for link in links]


def test_it_stays_short() -> None:
    assert len(PATH.read_bytes()) <= LARGEST_PAGE_BYTES
