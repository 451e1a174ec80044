"""Results of the series network."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rfa.benchmarks.results_page.parts import Document, ShownBar, Table

NAIVE, NETWORK, ALONE = "seasonal naive", "series", "series, as trained"
# Requirements set before the measurement: WQL and MASE relative to the naive forecast, as the geometric mean of the
# five tasks, and coverage of 90 % intervals before and after adaptation.
WQL, MASE, BEFORE, AFTER = 0.72, 0.80, 0.04, 0.01


def over_naive(document: Document, name: str) -> tuple[float, float] | None:
    """Return MASE and WQL relative to the naive forecast on the same windows, for models with every task."""
    tasks = document["tasks"].values()
    if not all(name in kept for kept in tasks):
        return None

    def mean(figure: str) -> float:
        return math.exp(
            sum(math.log(kept[name][figure] / kept[name].get("naive", kept[NAIVE])[figure]) for kept in tasks)
            / len(tasks)
        )

    return mean("mase"), mean("wql")


def gift_origins(document: Document) -> list[Document]:
    """Return the origins of the file and of the rows added at another commit."""
    return [document, *(one for kept in document["tasks"].values() for one in kept.values() if "commit" in one)]


def gift_tables(document: Document) -> list[Table]:
    rows = [
        (task, name, f"{one['mase']:.3f}", f"{one['wql']:.4f}", *(f"{100 * share:.1f}" for share in one["inside"]),
         f"{one['seconds']:.3f}", f"{one['windows']}")
        for task, kept in document["tasks"].items()
        for name, one in kept.items()
    ]  # fmt: skip
    published = [
        (name, *(f"{figures[k]:.2f}, {figures[k + 1]:.3f}" for k in (0, 2, 4)))
        for name, figures in document["published"].items()
    ]
    names: dict[str, None] = {name: None for kept in document["tasks"].values() for name in kept}
    found = [(name, means) for name in names if (means := over_naive(document, name)) is not None]
    return [
        Table(
            ("task", "model", "MASE", "WQL", "inside 50", "80", "90", "95", "99", "s per forecast", "windows"), rows,
            "Percent of the values inside intervals of 50 to 99 %:",
        ),
        Table(
            ("relative to the naive forecast", "MASE", "WQL"),
            [(name, f"{mase:.3f}", f"{wql:.3f}") for name, (mase, wql) in found],
            "Geometric means relative to the seasonal naive forecast, with intervals of a seasonal walk:",
        ),
        Table(
            ("published by GIFT-Eval", "m4_hourly", "m4_weekly", "ett1/H/short"), published,
            "Published MASE and WQL of other models on the same windows:",
        ),
    ]  # fmt: skip


def gift_bars(document: Document) -> Iterator[ShownBar]:
    means = over_naive(document, ALONE)
    if means is not None:
        yield ShownBar("series: MASE relative to the naive forecast", f"{means[0]:.3f}", f"{MASE}", means[0] <= MASE)
        yield ShownBar("series: WQL relative to the naive forecast", f"{means[1]:.3f}", f"{WQL}", means[1] <= WQL)
    for name, limit, title in ((ALONE, BEFORE, "as trained"), (NETWORK, AFTER, "adapted")):
        shares = [kept[name]["inside"][2] for kept in document["tasks"].values() if name in kept]
        if shares:
            worst = max(shares, key=lambda share: abs(share - 0.9))
            yield ShownBar(
                f"series, {title}: coverage of 90 % intervals, worst task", f"{worst:.3f}", f"0.9 ± {limit}",
                abs(worst - 0.9) <= limit,
            )  # fmt: skip
