"""What is shown of the windows where the network of any series fails: a sentence on each, made of its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rfa.benchmarks.results_page.parts import Document, Facts, Table

# A median that swings less than this share of what came is called flat; one that correlates less is of another shape.
FLAT, ALIKE = 0.5, 0.5
# A series whose mean went so many times as far as it did the season before is said to have moved.
MOVED = 2.0


def _of_the_level(one: Mapping[str, Any]) -> str:
    side = "above" if one["own"]["level"] > 0 else "below"
    text = f"what came lay {abs(one['own']['level']):.1f} {side} the median on average"
    if one["season"] > 1 and abs(one["moved"]) > MOVED * max(abs(one["moved_before"]), 1.0):
        text += (
            f": the mean of a season moved by {one['moved']:+.1f} of its usual changes, "
            f"where {one['foretold']:+.1f} were foretold"
        )
    return text


def _of_the_growth(one: Mapping[str, Any]) -> str:
    return f"the error grew by {one['own']['growth']:+.1f} from the first row to the last: the trend was another one"


def _of_the_rest(one: Mapping[str, Any]) -> str:
    if one["swing"] < FLAT:
        return f"the median was too flat: it swung by {one['swing']:.2f} of what came"
    if one["alike"] < ALIKE:
        return f"the shape was another one: median and values correlate by {one['alike']:+.2f}"
    own, others = one["own"]["rest"], one["others"]["rest"]
    return f"errors of {own:.1f} are left without level and trend, those of the rival are {others:.1f}"


def cause(one: Mapping[str, Any]) -> str:
    """The largest of the three parts of the mean squared error: level² + growth² / 12 + rest², and why."""
    own = one["own"]
    parts = {_of_the_level: own["level"] ** 2, _of_the_growth: own["growth"] ** 2 / 12, _of_the_rest: own["rest"] ** 2}
    return max(parts, key=parts.__getitem__)(one)


def sentence(one: Mapping[str, Any]) -> str:
    """What went wrong in a window, and what the intervals said of it."""
    outside = one["own"]["above"] + one["own"]["below"]
    return f"{cause(one)}; {outside} of {one['rows']} rows came outside the 90 % interval."


def worst_parts(document: Document) -> list[Table | Facts]:
    names = list(document["worst"][0]["loss"])
    rows = [
        (f"{one['task']}, {one['series']}, window {one['window']}", *(f"{one['loss'][name]:.2f}" for name in names))
        for one in document["worst"]
    ]
    ranked = document["ranked"]
    note = f"Losses, the worst first; ranked at commit {ranked['commit']}:"
    sentences = {f"{one['task']}, {one['series']}, window {one['window']}": sentence(one) for one in document["worst"]}
    return [Table(("window", *names), rows, note), Facts(sentences)]
