"""The results page and the table of the README as text."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rfa.benchmarks.results_page import filters, language, network
from rfa.benchmarks.results_page.declared import declared as shown_by
from rfa.benchmarks.results_page.headlines import caption, headlines
from rfa.benchmarks.results_page.parts import Document, Facts, Shown, ShownBar, Table
from rfa.measured import HOME, RESULTS

PAGE = HOME / "docs" / "RESULTS.md"
README = HOME / "README.md"
WORDS = Path(__file__).with_name("results.toml")
TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
_DECLARED = {name: shown_by(spec) for name, spec in TABLES.items()}
# Results that are shown only in the terminal, and load tests that share a section.
_ON_TERMINALS = ("load", "load-run", "kernel")
_LOADS = ("load-filter-live", "load-text-64", "load-mixed", "load-overload")
SHOWN: Mapping[str, Shown] = {
    **{name: shown for name, shown in _DECLARED.items() if name not in _ON_TERMINALS},
    **dict.fromkeys(_LOADS, _DECLARED["load"]),
    "auto-coverage": replace(_DECLARED["auto-coverage"], bars=filters.auto_bars),
    "alarm-rates": Shown(filters.alarm_tables, filters.alarm_bars, filters.and_others),
    "filter-nab": Shown(filters.nab_tables, filters.nab_bars, filters.and_others),
    "forecast-etth1": Shown(filters.forecast_tables, filters.forecast_bars),
    "afa": Shown(filters.afa_tables),
    "gift": Shown(network.gift_tables, network.gift_bars, network.gift_origins),
    "language": Shown(language.language_tables),
    "quality-small": Shown(language.quality_tables, language.quality_bars, language.quality_origins),
    "recall": replace(_DECLARED["recall"], parts=language.recall_tables),
}
# The table of the README is between these lines.
BETWEEN = ("<!-- results: made by `make results` -->", "<!-- end of results -->")
BEGINNING = """# Results

`make results` writes this page from the files in [results](../results). Every section states its command, commit,
hardware and date. A target is a limit that was set before the measurement. A commit marked `-dirty` had uncommitted
changes.
"""


@dataclass(frozen=True)
class Result:
    """A file in results/, as results.toml describes it.

    title contains only letters, digits and spaces, so that all renderers create the same anchor. is_optional: the page
    omits the section while the file is missing.
    """

    file: str
    subject: str
    title: str
    command: str
    words: str
    says: str = ""
    figures: Sequence[str] = ()
    is_optional: bool = False

    @property
    def link(self) -> str:
        return f"[{self.title}](#{self.title.lower().replace(' ', '-')})"


def load(folder: Path = RESULTS) -> dict[str, Document]:
    """Load every document of a folder by file name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def declared() -> list[Result]:
    """Return every result in the order of the page."""
    return [Result(file, **words) for file, words in tomllib.loads(WORDS.read_text(encoding="utf-8")).items()]


def page(documents: Mapping[str, Document]) -> str:
    """Return docs/RESULTS.md."""
    results = [result for result in declared() if result.file in documents or not result.is_optional]
    missing = {result.file for result in declared()} - {result.file for result in results}
    for names in ({result.file for result in results}, SHOWN.keys() - missing):
        if unlike := names ^ documents.keys():
            raise ValueError(f"these names are only in one of results.toml and results/: {', '.join(sorted(unlike))}")
    bars = {result.file: list(SHOWN[result.file].bars(documents[result.file])) for result in results}
    blocks = [
        BEGINNING,
        *("## Overview\n", _text(_overview(results, documents, bars))),
        *("## Missed targets\n", _text(_missed(results, bars))),
    ]
    for subject in dict.fromkeys(result.subject for result in results):
        blocks.append(f"## {subject}\n")
        for result in results:
            if result.subject == subject:
                blocks += _section(result, documents[result.file], bars[result.file])
    return "\n".join(blocks)


def readme(text: str, documents: Mapping[str, Document]) -> str:
    """Return the README with its table replaced."""
    begin, end = map(re.escape, BETWEEN)
    table = _text(Table(("", "measured", "compared with"), headlines(documents)))
    return re.sub(f"(?<={begin}\n).*?(?={end})", lambda _: f"\n{table}\n{caption(documents)}\n", text, flags=re.DOTALL)


def tables_of(result: str, document: Document) -> list[str]:
    """Return the tables and requirements of one result as lines of Markdown, for the terminal."""
    shown = SHOWN.get(result) or _DECLARED[result]
    return "\n".join(_shown(shown, document, list(shown.bars(document)))).splitlines()


def main() -> None:
    """Write the page and the table."""
    documents = load()
    PAGE.write_text(page(documents), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8"), documents), encoding="utf-8")


def _overview(
    results: Iterable[Result], documents: Mapping[str, Document], bars: Mapping[str, Sequence[ShownBar]]
) -> Table:
    rows = []
    for result in results:
        document = documents[result.file]
        dates = {_hardware(part, document).get("date", "") for part in SHOWN[result.file].origins(document)}
        judged = [bar.is_met for bar in bars[result.file] if bar.is_met is not None]
        rows.append((result.link, max(dates), f"{sum(judged)} of {len(judged)}" if judged else ""))
    return Table(("result", "measured on", "targets met"), rows)


def _missed(results: Iterable[Result], bars: Mapping[str, Sequence[ShownBar]]) -> Table:
    return Table(
        ("target", "measured", "limit", "section"),
        [
            (bar.name, bar.actual, bar.limit, result.link)
            for result in results
            for bar in bars[result.file]
            if bar.is_met is False
        ],
    )


def _section(result: Result, document: Document, bars: Sequence[ShownBar]) -> list[str]:
    shown = SHOWN[result.file]
    blocks = [f"### {result.title}\n", f"{result.words}\n", *_shown(shown, document, bars)]
    if result.says:
        blocks.append(f"{result.says}\n")
    blocks += [f"![{_alternative_text(result, figure)}]({figure})\n" for figure in result.figures]
    origins = dict.fromkeys(_origin(part, document) for part in shown.origins(document))
    source = f"To reproduce: `{result.command}`. Data: [{result.file}.json](../results/{result.file}.json)."
    return [*blocks, "\n".join([*(f"{origin}.  " for origin in origins), source]) + "\n"]


def _alternative_text(result: Result, figure: str) -> str:
    """Return the title and, if the result has several figures, the words in which their file names differ."""
    words = {one: Path(one).stem.replace("_", "-").split("-") for one in result.figures}
    common = set.intersection(*map(set, words.values()))
    part = " ".join(word for word in words[figure] if word not in common)
    return f"{result.title}: {part}" if part else result.title


def _shown(shown: Shown, document: Document, bars: Sequence[ShownBar]) -> list[str]:
    """Return the tables and requirements of a document."""
    blocks = [*map(_text, shown.parts(document))]
    if bars:
        rows = [(bar.name, bar.actual, bar.limit, bar.verdict) for bar in bars]
        blocks.append(_text(Table(("target", "measured", "limit", ""), rows)))
    return blocks


def _origin(part: Document, document: Document) -> str:
    """Return commit, hardware and date of a part. Missing entries come from the document."""
    commit = f"Measured at commit {part.get('commit', document.get('commit'))}"
    origin = _hardware(part, document)
    if "device" in origin:
        versions = (
            f"driver {origin['driver']}, CUDA {origin['cuda']}, torch {origin['torch']}, Triton {origin['triton']}"
        )
        return f"{commit} on {origin['date']} ({origin['device']}, {versions})"
    if origin:
        cores = f"{origin['cores']} {'core' if str(origin['cores']) == '1' else 'cores'}"
        return f"{commit} on {origin['date']} ({origin['cpu']}, {cores}, Python {origin['python']})"
    return f"{commit}. The result does not depend on the hardware"


def _hardware(part: Document, document: Document) -> Mapping[str, str]:
    found: Mapping[str, str] = part.get("hardware", document.get("hardware", {}))
    return found


def _text(part: Table | Facts) -> str:
    return "\n".join(part.lines()) + "\n"
