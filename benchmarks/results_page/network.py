"""Tables and targets of the series network on the results page that need a computation. All others are declared in
tables.toml."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rfa.benchmarks.results_page.parts import Document, ShownBar, Table

NAIVE, NETWORK, ALONE = "seasonal naive", "series", "series, as trained"
# Requirements set before the measurement: WQL and MASE relative to the naive forecast, as the geometric mean of the
# first five tasks, and coverage of 90 % intervals before and after adaptation.
WQL, MASE, BEFORE, AFTER = 0.72, 0.80, 0.04, 0.01
FIRST = ("m4_hourly", "m4_weekly", "ett1/H/short", "ett1/H/medium", "ett1/H/long")
# Our models in the tables of tasks.
SHOWN = (NETWORK, ALONE, "default", "auto")
# Position of the 90 % intervals.
NINETY = 2
Ratios = tuple[float, float]


def ratios(document: Document, task: str, name: str) -> Ratios | None:
    """Return MASE and WQL of a model on a task, relative to the naive forecast of the same windows."""
    kept = document["tasks"][task]
    if name in kept:
        usual, found = kept[name].get("naive", kept[NAIVE]), kept[name]
        return found["mase"] / usual["mase"], found["wql"] / usual["wql"]
    published = document["published"].get("models", {}).get(name, {})
    if task not in published:
        return None
    return published[task][0] / kept[NAIVE]["mase"], published[task][1] / kept[NAIVE]["wql"]


def over_naive(document: Document, name: str, tasks: Sequence[str] | None = None) -> Ratios | None:
    """Return geometric means of MASE and WQL, relative to the naive forecast, over tasks (default: all) for models
    with all of them.
    """
    found = [ratios(document, task, name) for task in (document["tasks"] if tasks is None else tasks)]
    present = [one for one in found if one is not None]
    if not present or len(present) < len(found):
        return None
    mase, wql = (math.exp(sum(math.log(one[k]) for one in present) / len(present)) for k in (0, 1))
    return mase, wql


def unseen(document: Document) -> list[str]:
    """Return the tasks of the sets that were never looked at."""
    return [task for task in document["tasks"] if task not in document.get("seen", document["tasks"])]


def models(document: Document) -> list[str]:
    """Return the names of the measured models and of the published ones."""
    measured = {name: None for kept in document["tasks"].values() for name in kept}
    return [*measured, *document["published"].get("models", {})]


def gift_origins(document: Document) -> list[Document]:
    """Return the origins of the file and of the rows added at another commit."""
    rows = [one for kept in document["tasks"].values() for one in kept.values() if "commit" in one]
    return [document, *{(one["commit"], str(one["hardware"])): one for one in rows}.values()]


def _pair(found: Ratios | None) -> tuple[str, str]:
    return ("–", "–") if found is None else (f"{found[0]:.3f}", f"{found[1]:.3f}")


def gift_tables(document: Document) -> list[Table]:
    others, every, tasks = unseen(document), models(document), document["tasks"]
    means = [
        (name, *_pair(over_naive(document, name)), *_pair(over_naive(document, name, others)))
        for name in every
        if over_naive(document, name) or (others and over_naive(document, name, others))
    ]
    head = ("relative to the naive forecast", f"MASE, {len(tasks)} tasks", "WQL")
    found = [
        Table(
            (*head, f"MASE, {len(others)} tasks not used in development", "WQL"), means,
            "The values are geometric means relative to the seasonal naive forecast, whose intervals are those of a "
            "seasonal random walk. Lower is better. A dash means that the model was not run on all of the tasks.",
        )
    ]  # fmt: skip
    published = list(document["published"].get("models", {}))
    columns = [name for name in SHOWN if name in every] + published
    for k, measure in enumerate(("WQL", "MASE")):
        key = measure.lower()
        rows = [
            (task + ("" if task in others else " *"), f"{kept[NAIVE]['windows']}", f"{kept[NAIVE][key]:.4g}",
             *(f"{one[1 - k]:.2f}" if (one := ratios(document, task, name)) else "–" for name in columns))
            for task, kept in tasks.items() if NAIVE in kept
        ]  # fmt: skip
        note = (
            f"The column `naive` shows the {measure} of the seasonal naive forecast. The columns to its right show the "
            f"{measure} of each model, divided by this value."
        )
        found.append(Table(("task", "windows", "naive", *columns), rows, note))
    return [*found, *_coverage(document)]


def _coverage(document: Document) -> list[Table]:
    names = [name for name in models(document) if any(name in kept for kept in document["tasks"].values())]
    names = [name for name in names if name != "its points alone"]
    rows = [
        (task, *(f"{100 * kept[name]['inside'][NINETY]:.1f}" if name in kept else "–" for name in names))
        for task, kept in document["tasks"].items()
    ]
    return [Table(("task", *names), rows, "The next table shows the percentage of the values inside 90 % intervals.")]


def gift_bars(document: Document) -> Iterator[ShownBar]:
    first = [task for task in FIRST if task in document["tasks"]]
    means = over_naive(document, ALONE, first)
    if means is not None:
        for title, value, limit in (("MASE", means[0], MASE), ("WQL", means[1], WQL)):
            name = f"series: {title} relative to the naive forecast, first {len(first)} tasks"
            yield ShownBar(name, f"{value:.3f}", f"{limit}", value <= limit)
    for name, limit, title in ((ALONE, BEFORE, "as trained"), (NETWORK, AFTER, "adapted")):
        shares = [kept[name]["inside"][NINETY] for kept in document["tasks"].values() if name in kept]
        if shares:
            worst = max(shares, key=lambda share: abs(share - 0.9))
            yield ShownBar(
                f"series, {title}: coverage of 90 % intervals, worst task", f"{worst:.3f}", f"0.9 ± {limit}",
                abs(worst - 0.9) <= limit,
            )  # fmt: skip
