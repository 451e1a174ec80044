"""The results page is generated from results/, and the measurements are consistent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rfa.benchmarks.results_page import page as results_page
from rfa.benchmarks.results_page.declared import declared as declared_by
from rfa.benchmarks.results_page.headlines import headlines
from rfa.benchmarks.results_page.page import BETWEEN, PAGE, README, SHOWN, declared, load, page, readme
from rfa.benchmarks.results_page.parts import Facts, ShownBar, Table, as_text
from rfa.measured import HOME, RESULTS

DOCUMENTS = load()
LOADS = [name for name in DOCUMENTS if name.startswith("load-")]


def test_the_committed_page_is_what_the_generator_makes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(DOCUMENTS), "run `make results`"


def test_the_table_of_the_readme_is_what_the_generator_makes() -> None:
    text = README.read_text(encoding="utf-8")
    assert all(mark in text for mark in BETWEEN)
    assert text == readme(text, DOCUMENTS), "run `make results`"


def test_every_file_of_results_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for path in RESULTS.iterdir():
        assert re.fullmatch(r"[a-z0-9-]+\.json", path.name), "words are joined by hyphens"
        assert f"](../results/{path.name})" in text


def test_every_section_says_where_it_comes_from() -> None:
    sections = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(sections) == len(DOCUMENTS)
    for section in sections:
        assert re.search(r"^Measured at commit [0-9a-f]{12}(-dirty)?( on |\. )", section, flags=re.MULTILINE), section[
            :80
        ]
        assert re.search(r"^To reproduce: `(rfa|python -m|make) ", section, flags=re.MULTILINE), section[:80]


def test_a_file_without_a_declaration_is_refused() -> None:
    with pytest.raises(ValueError, match="another"):
        page({**DOCUMENTS, "another": {}})
    with pytest.raises(ValueError, match="decode"):
        page({name: document for name, document in DOCUMENTS.items() if name != "decode"})


def test_a_missed_bar_stands_in_front() -> None:
    missed = [{**bar, "met": False, "actual": 99.5} for bar in DOCUMENTS["load-text-64"]["budgets"]]
    text = page({**DOCUMENTS, "load-text-64": {**DOCUMENTS["load-text-64"], "budgets": missed}})
    front = text[text.index("## Missed targets") : text.index("## Filters")]
    assert front.count("[Concurrent texts](#concurrent-texts)") == len(missed)
    assert "| ttft_p99_ms | 99.5 | 200 | **missed** |" in text


def test_links_and_figures_of_the_page_are_there() -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / target).exists(), target
    for file in (README, HOME / "docs" / "guides" / "examples.md", PAGE):
        for anchor in re.findall(r"\]\((?:docs/)?(?:RESULTS\.md)?#([\w-]+)\)", file.read_text(encoding="utf-8")):
            headings = {result.link.partition("#")[2].rstrip(")") for result in declared()}
            assert anchor in headings, f"{file.name}: {anchor}"


def test_headings_are_plain_words() -> None:
    """So that every renderer makes the same anchor of them."""
    assert all(re.fullmatch(r"[A-Za-z0-9 ]+", result.title) for result in declared())
    assert len({result.title for result in declared()}) == len(SHOWN)


def test_words_hold_no_decimals() -> None:
    """Measured numbers come from the documents; what stands in words is part of a definition."""
    allowed = {"0.1", "0.99", "2.01"}
    for result in declared():
        assert set(re.findall(r"\b\d+\.\d+\b", result.words + result.says)) <= allowed, result.file


def test_parts_as_text() -> None:
    assert Table(("a", "b"), [("x", 1)], "Note:").lines() == ["Note:", "", "| a | b |", "| --- | ---: |", "| x | 1 |"]
    assert Facts({"n": {"a_b": 1000, "c": {}}, "is": True, "list": []}).lines() == [
        "- n: a b 1,000, c none",
        "- is: yes",
        "- list: none",
    ]
    assert as_text(0.5) == "0.5"
    assert [ShownBar("n", "–", "1", is_met).verdict for is_met in (True, False, None)] == [
        "met",
        "**missed**",
        "not measured",
    ]


def test_declared_tables_and_bars() -> None:
    document = {
        "unit": "s",
        "rows": [{"n": "a", "x": {"p": 0.1234, "q": None}}, {"n": "b", "x": {"q": 2}}],
        "bars": [{"name": "kept", "bar": 1, "actual": 2.0, "met": False}, {"name": "no", "bar": 1, "actual": None}],
        "lost": [],
    }
    shown = declared_by(
        {
            "tables": [
                {"note": "In {unit}:", "rows": "rows/*", "columns": [["n", "{@}: {n}"], ["{@}", "{.:10*.1f}", "x/*"]]},
                {"rows": "rows/*", "without": "x/p", "columns": [["p and q", "{x/p:1%} ± {x/q}"]]},
                {"rows": "absent/*", "columns": [["a", "{a}"]]},
            ],
            "facts": ["lost"],
            "listed_bars": "bars/*",
            "none_of": {"lost": "lost"},
            "bars": [
                {"name": "{n}", "rows": "rows/*", "value": "x/p", "of": "x/p", "most": 1, "actual": "", "limit": ""}
            ],
        }
    )
    facts, first, second = (part.lines() for part in shown.parts(document))
    assert facts == ["- lost: none"]
    assert first[2:] == ["| n | p | q |", "| --- | ---: | ---: |", "| 1: a | 1.2 | – |", "| 2: b | – | 20.0 |"]
    assert first[0] == "In s:" and second[-1] == "| – ± 2 |"
    assert [(bar.name, bar.actual, bar.is_met) for bar in shown.bars(document)] == [
        ("kept", "2", False),
        ("no", "–", None),
        ("lost", "0", True),
        ("a", "", True),
    ]


def nonfinite(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from nonfinite(item)
    elif isinstance(value, float) and not math.isfinite(value):
        yield value


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_documents_are_finite_and_name_their_commit(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert not list(nonfinite(document))
    for part in SHOWN[path.stem].origins(document):
        assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", part.get("commit", document.get("commit")))


@pytest.mark.parametrize("name", LOADS)
def test_a_load_that_passed_was_answered_rightly(name: str) -> None:
    document = DOCUMENTS[name]
    assert document["passed"] == all(bar["met"] for bar in document["budgets"])
    if not document["passed"]:
        return
    assert not document.get("wrong_count") and not document.get("error_count")
    counts = document.get("counts", {})
    for kind in ("observation", "text", "batch"):
        assert counts.get(f"{kind}.right") == counts.get(f"{kind}.answered")


def test_loads_were_measured_at_one_commit() -> None:
    assert len({DOCUMENTS[name]["commit"] for name in LOADS}) == 1


def test_what_all_tests_left_out_and_reached_adds_up() -> None:
    """The shape alone: what is skipped depends on the machine."""
    document = DOCUMENTS["tests"]
    assert document["tests"]["passed"] > document["tests"]["skipped"] == sum(document["skips"].values())
    assert all(reason and count > 0 for reason, count in document["skips"].items())
    # The folders of the measured commit.
    assert {"rfa", "model", "service"} <= set(document["coverage"])
    for layer in document["coverage"].values():
        assert 0 < layer["lines_reached"] <= layer["lines"]
        assert 0 <= layer["branches_reached"] <= layer["branches"]


def test_the_generator_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, front = tmp_path / "RESULTS.md", tmp_path / "README.md"
    front.write_text("\n".join(BETWEEN) + "\n", encoding="utf-8")
    monkeypatch.setattr(results_page, "PAGE", target)
    monkeypatch.setattr(results_page, "README", front)
    results_page.main()
    assert target.read_text(encoding="utf-8") == page(DOCUMENTS)
    assert front.read_text(encoding="utf-8").count("|\n") == 2 + len(list(headlines(DOCUMENTS)))
