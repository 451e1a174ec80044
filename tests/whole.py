"""What a run of all tests says at its end: what was skipped and why, and how much of each layer was reached.

`make test-all` loads this plugin and tells it where pytest-cov puts its report. A run of everything in which nothing
failed is a measurement: it is written to the file of `--whole-result`. What a file skips as a whole counts once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.shards import is_part

COMMAND = "make test-all"
COUNTED = ("passed", "skipped", "xfailed")
# Of coverage's report on a file, what is added up.
SUMMED = {
    "lines": "num_statements",
    "lines_reached": "covered_lines",
    "branches": "num_branches",
    "branches_reached": "covered_branches",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("whole", "a run of all tests")
    group.addoption("--whole-coverage", type=Path, help="the JSON report of pytest-cov")
    group.addoption("--whole-result", type=Path, help="the file of results to write if all ran and none failed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return  # interrupted: nothing was counted to the end
    skips = reasons(terminalreporter.stats.get("skipped", []))
    layers = reached(json.loads(config.getoption("--whole-coverage").read_text()))
    terminalreporter.section("the whole")
    for line in (*skip_lines(skips), "", *layer_lines(layers)):
        terminalreporter.write_line(line)
    if exitstatus == pytest.ExitCode.OK and is_whole(config):
        write(config.getoption("--whole-result"), counts(terminalreporter.stats), skips, layers)


def reasons(reports: Iterable[Any]) -> dict[str, int]:
    """How often each reason was given, the most frequent first."""
    given = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    return dict(sorted(given.items(), key=lambda item: (-item[1], item[0])))


def counts(stats: Mapping[str, list[Any]]) -> dict[str, int]:
    """How many tests ended in each of the ways in which none fails."""
    return {way: len(stats.get(way, [])) for way in COUNTED}


def reached(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Lines and branches of each layer, and how many of them the tests reached.

    Args:
        report: of `coverage json`, with paths from the top of the checkout.
    """
    layers: dict[str, Counter[str]] = {}
    for name, file in report["files"].items():
        layer = layers.setdefault(Path(name).parts[0], Counter())
        layer.update({ours: file["summary"][theirs] for ours, theirs in SUMMED.items()})
    return {layer: dict(layers[layer]) for layer in sorted(layers)}


def is_whole(config: pytest.Config) -> bool:
    """Whether no test was chosen: by a name, a mark, a path or a shard, or left out because it passed before."""
    is_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return is_all and not config.getoption("keyword") and not config.getoption("markexpr") and not is_part(config)


def write(path: Path, tests: Mapping[str, int], skips: Mapping[str, int], layers: Mapping[str, Any]) -> None:
    """Write what was measured, with commit and hardware."""
    # Here, because a plugin is imported before coverage looks.
    from rfa.measured import origin, write_result

    write_result(path, {**origin(COMMAND), "tests": tests, "skips": skips, "coverage": layers})


def skip_lines(skips: Mapping[str, int]) -> list[str]:
    return [f"{sum(skips.values())} skipped", *(f"{count:6d}  {reason}" for reason, count in skips.items())]


def layer_lines(layers: Mapping[str, Mapping[str, int]]) -> list[str]:
    total = Counter[str]()
    for layer in layers.values():
        total.update(layer)
    rows = [f"{'reached':12}{'lines':>10}{'branches':>10}"]
    for name, layer in (*layers.items(), ("all", total)):
        rows.append(f"{name:12}{_share(layer, 'lines'):>10}{_share(layer, 'branches'):>10}")
    return rows


def _share(layer: Mapping[str, int], of: str) -> str:
    return f"{100 * layer[f'{of}_reached'] / layer[of]:.1f} %" if layer[of] else "none"
