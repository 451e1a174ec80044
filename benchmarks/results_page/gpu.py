"""What `rfa gpu-check` measured on a GPU: kernels beside their rivals, decoding, prompts, long series, training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rfa.benchmarks.results_page.parts import Document, Facts, Shown, ShownBar, Table

Row = Mapping[str, Any]
# Ours first, then what it is timed against.
ATTENTION = ("fused", "public", "flash", "flex", "eager")
SLOTS = ("fused", "eager loop")
# Of the kernels of a step or a quantum, so many are told.
KERNELS = 8
NOTHING = "–"


def tables(document: Document) -> list[Table | Facts]:
    """One for each kind of measurement that was taken."""
    return [
        Facts({name: value for name, value in document["hardware"].items() if name != "date"}),
        _became(document),
        *_attention(_rows(document, "attention")),
        *_decoding(document["parts"].get("decoding", {})),
        *_prompts(document["parts"].get("prompts", {}).get("rows", ())),
        *_series(document["parts"].get("long series", {}).get("rows", ())),
        *_training(_rows(document, "training step")),
        *_slots(_rows(document, "slots")),
        *_memory(_rows(document, "memory")),
    ]


def bars(document: Document) -> Iterator[ShownBar]:
    """Those of all parts; a part that did not run has none."""
    for part in document["parts"].values():
        for bar in part.get("bars", ()):
            sign, actual = "≥" if bar["kind"] == "at least" else "≤", bar["actual"]
            told = NOTHING if actual is None else figure(actual)
            yield ShownBar(bar["name"], told, f"{sign} {figure(bar['bar'])}", None if actual is None else bar["met"])


def bar(document: Document, beginning: str) -> Row | None:
    """The one whose name begins so, if it was measured."""
    found = [
        bar
        for part in document["parts"].values()
        for bar in part.get("bars", ())
        if bar["name"].startswith(beginning) and bar["actual"] is not None
    ]
    return found[0] if found else None


def figure(value: float) -> str:
    """A measured number or a limit in four digits, or all that it has."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _rows(document: Document, measure: str) -> list[Row]:
    """The timed rows of a measure, and those of rivals that have no time, in all parts."""
    return [
        row
        for part in document["parts"].values()
        for row in part.get("rows", ())
        if row.get("measure") == measure and ("p50_ms" in row or "failed" in row)
    ]


def _became(document: Document) -> Table:
    """What became of every part; the errors are those against float64 or the model on a CPU."""

    def largest(part: Row) -> str:
        every = [part.get("errors", {}), *(row["errors"] for row in part.get("rows", ()) if "errors" in row)]
        found = [error for errors in every for error in errors.values()]
        return f"{max(found):.2g}" if found else NOTHING

    rows = [
        (name, part["status"], f"{part['seconds']:.0f}", largest(part), part.get("reason", ""))
        for name, part in document["parts"].items()
    ]
    return Table(("part", "became", "s", "largest error", "why"), rows)


def _attention(rows: Sequence[Row]) -> Iterator[Table]:
    times: dict[tuple[int, int, str], dict[str, float]] = {}
    for row in rows:
        if "p50_ms" in row:
            # The first time of ours is that beside flash; it is timed again beside flex.
            own = times.setdefault((row["width"], row["length"], row["pass"]), {})
            own.setdefault(row["implementation"], row["p50_ms"])
    if times:
        told = [
            (f"{width} reals, {length:,} tokens, {of}", *(_ms(found.get(name)) for name in ATTENTION),
             f"{found['fused'] / found['flash']:.2f}" if "flash" in found else NOTHING)
            for (width, length, of), found in sorted(times.items(), key=lambda entry: entry[0][:2])
        ]  # fmt: skip
        note = "ms, median of rounds in which ours and theirs take turns; `public` rotates and checks, too:"
        yield Table(("attention", *ATTENTION, "fused over flash"), told, note)
    failed = {
        (f"{row['implementation']}, {row['width']} reals, {row['length']:,} tokens", row["failed"])
        for row in rows
        if "failed" in row
    }
    if failed:
        yield Table(("rival without a time", "why"), sorted(failed))


def _decoding(part: Row) -> Iterator[Table]:
    rows = [
        (f"{row['batch']:,}", row["failed"], *[NOTHING] * 4)
        if "failed" in row
        else (f"{row['batch']:,}", row["choice"], *_speed(row), *_speed(row["served"]))
        for row in part.get("batches", ())
    ]
    if rows:
        head = ("texts at a time", "choice", "graph, ms", "tokens/s", "whole call, ms", "tokens/s")
        note = "A decode step: its graph alone by the GPU, and the server's whole call by the clock of the host:"
        yield Table(head, rows, note)
    for batch in dict.fromkeys(row["batch"] for row in part.get("kernels", ())):
        own = [row for row in part["kernels"] if row["batch"] == batch]
        yield _kernels(f"Kernels of a step that draws, texts at a time: {batch:,}.", own)


def _prompts(rows: Sequence[Row]) -> Iterator[Table]:
    told = [
        (f"{row['quantum']}, {row['mode']}", _ms(row["p50_ms"]), _ms(row["device_ms"]), f"{row['launches']:g}",
         f"{row['tokens_per_second']:,}")
        for row in rows
    ]  # fmt: skip
    if told:
        head = ("1,024 tokens of prompts", "ms", "of the GPU, ms", "launches", "tokens/s")
        yield Table(head, told, "By the clock of the host; of the GPU the sum of its kernels and copies:")


def _series(rows: Sequence[Row]) -> Iterator[Table]:
    told = [
        (f"{row['series']}, network on {row['network']}", _ms(row["p50_ms"]), f"{row['rows_per_second']:,}")
        for row in rows
    ]
    if told:
        yield Table(("long series", "ms", "rows/s"), told)


def _training(rows: Sequence[Row]) -> Iterator[Table]:
    told = [(row["implementation"], _ms(row["p50_ms"]), f"{row['tokens_per_second']:,}") for row in rows]
    if told:
        yield Table(("training step", "ms", "tokens/s"), told)


def _slots(rows: Sequence[Row]) -> Iterator[Table]:
    times: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        times.setdefault((row["config"], row["pass"]), {})[row["implementation"]] = row["p50_ms"]
    if times:
        told = [(f"{config}, {of}", *(_ms(found.get(name)) for name in SLOTS)) for (config, of), found in times.items()]
        yield Table(("scan of slots", *(f"{name}, ms" for name in SLOTS)), told)


def _memory(rows: Sequence[Row]) -> Iterator[Table]:
    told = [(row["implementation"], f"{row['peak_mib']:,.0f}", _ms(row["p50_ms"])) for row in rows]
    if told:
        yield Table((f"{rows[0]['length']:,} tokens, forward and backward", "peak MiB", "ms"), told)


def _kernels(note: str, rows: Sequence[Row]) -> Table:
    shown = [(f"`{row['kernel']}`", f"{row['launches']:g}", f"{row['us']:.1f}") for row in rows[:KERNELS]]
    rest = rows[KERNELS:]
    if rest:
        count, us = (sum(row[name] for row in rest) for name in ("launches", "us"))
        shown.append(("all others", f"{count:g}", f"{us:.1f}"))
    return Table(("kernel", "launches", "µs"), shown, note)


def _speed(row: Row) -> tuple[str, str]:
    return _ms(row["p50_ms"]), f"{row['tokens_per_second']:,}"


def _ms(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


SHOWN = {"gpu-check": Shown(tables, bars)}
