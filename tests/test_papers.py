"""The page of the papers: a row for each of their headings, whose files, tests and links exist."""

from __future__ import annotations

import json
import re

import pytest

from tests.documented import ROOT

PAGE = (ROOT / "docs" / "PAPERS.md").read_text(encoding="utf-8")
HEADINGS = json.loads((ROOT / "tests" / "papers_headings.json").read_text(encoding="utf-8"))
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", PAGE, re.MULTILINE))
# What a row without code and a test begins with.
REASONS = ("text", "not done, because ")


def rows(section: str) -> list[list[str]]:
    lines = re.findall(r"^\|(.*)\|$", SECTIONS[section], re.MULTILINE)[2:]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


@pytest.mark.parametrize("paper", HEADINGS)
def test_every_heading_of_a_paper_has_its_row(paper: str) -> None:
    assert [row[0] for row in rows(paper)] == HEADINGS[paper]


@pytest.mark.parametrize("section", [*HEADINGS, "Other papers"])
def test_a_row_has_code_and_a_test_or_a_reason(section: str) -> None:
    for heading, code, test, last in rows(section):
        named = [re.findall(r"`([\w/]+\.\w+)(?:::(\w+))?`", cell) for cell in (code, test)]
        assert all(named) or (not code and not test and last.startswith(REASONS)), heading
        assert last, heading
        for path, name in [*named[0], *named[1]]:
            source = (ROOT / path).read_text(encoding="utf-8")
            assert not name or re.search(rf"^def {name}\(", source, re.MULTILINE), f"{heading}: {path}::{name}"
        assert all(path.startswith("tests/") for path, _ in named[1]), heading
