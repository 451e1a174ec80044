"""How the server holds up: load, faults, attacks, and what a million of anything leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rfa.benchmarks.results_page.parts import (
    Document,
    Facts,
    Shown,
    ShownBar,
    Table,
    each,
    listed_bars,
    named_bars,
    percent,
    told,
)

QUANTILES = ("p50", "p90", "p99", "max")
# Of tests/soak/rss_soak.py: how much the memory of all processes may grow after the warm-up.
LARGEST_GROWTH = 0.02


# Of issue bars: microseconds of processor time an observation, and seconds of the command.
SERIES_LIMITS = {"rows": 25.0, "arrow": 8.0}
COMMAND_LIMIT = 4.0
# Seconds of a request of a thousand series of a thousand observations.
MANY_LIMIT = 3.0


def series_tables(document: Document) -> list[Table]:
    forms = list(next(iter(document["microseconds"].values())))
    rows = [
        (model, *(f"{row[form]:.1f}" for form in forms), f"{document['command_seconds'][model]:.1f}")
        for model, row in document["microseconds"].items()
    ]
    title = (
        f"Microseconds of processor time an observation, {document['observations']:,} a series; seconds of "
        f"`rfa filter` on {document['command_rows']:,} rows:"
    )
    return [Table(("model", *forms, "`rfa filter`, s"), rows, title), *many_tables(document.get("many"))]


def many_tables(figures: Mapping[str, Any] | None) -> Iterator[Table]:
    """Of documents that have them."""
    if figures is None:
        return
    rows = [
        (order, f"{row['seconds']:.1f}", f"{row['fastest']:.1f}", f"{row['processor_seconds']:.1f}")
        for order, row in figures.items()
        if isinstance(row, dict) and "seconds" in row
    ]
    live = "; ".join(
        f"{when} {waits['p50']:.1f} ms, 99 % {waits['p99']:.1f} ms" for when, waits in figures["live_ms"].items()
    )
    title = (
        f"{figures['series']:,} series of {figures['observations']:,} observations in one Arrow stream; a live stream "
        f"waits for half of its answers {live}:"
    )
    yield Table(("rows sorted", "seconds, median", "fastest", "processor seconds"), rows, title)


def series_bars(document: Document) -> list[ShownBar]:
    bars = [
        ShownBar(f"{model}, {form}", f"{document['microseconds'][model][form]:.1f} µs", f"≤ {limit:g} µs",
                 document["microseconds"][model][form] <= limit)
        for form, limit in SERIES_LIMITS.items() for model in document["microseconds"]
    ]  # fmt: skip
    for model, seconds in document["command_seconds"].items():
        bars.append(
            ShownBar(f"`rfa filter`, {model}", f"{seconds:.1f} s", f"≤ {COMMAND_LIMIT:g} s", seconds <= COMMAND_LIMIT)
        )
    if "many" in document:
        seconds = document["many"]["by series"]["seconds"]
        bars.append(
            ShownBar("1,000 series × 1,000 rows", f"{seconds:.1f} s", f"≤ {MANY_LIMIT:g} s", seconds <= MANY_LIMIT)
        )
    return bars


def load_tables(document: Document) -> list[Table]:
    rows = [
        (name, f"{row['count']:,}", *(f"{row[quantile]:.1f}" for quantile in QUANTILES))
        for name, row in document["latency_ms"].items()
    ]
    share = sum(document["generator_cpu_share"])
    rate = document["throughput"]
    rates = ", ".join(
        f"{rate[name]:,.0f} {noun} a second"
        for name, noun in (("tokens_per_second", "tokens"), ("observations_per_second", "observations"))
        if rate[name]
    )
    return [
        Table(("ms", "count", *QUANTILES), rows, f"{rates}; the load generator took {share:.2f} of a core of them:")
    ]


def overhead_tables(document: Document) -> list[Table]:
    rows = [(number, *(f"{rate:,.0f}" for rate in pair)) for number, pair in enumerate(document["rounds"], start=1)]
    rows.append(("all", *(f"{document[f'{who}_tokens_per_second']:,.0f}" for who in ("engine", "server"))))
    return [Table(("round", "engine alone", "server"), rows, "Tokens a second:")]


def idle_tables(document: Document) -> list[Table]:
    rows = [
        (
            name,
            *(f"{part[key]:,}" for key in ("state_bytes", "computed_bytes", "measured_bytes")),
            percent(part["memory_error"]),
        )
        for name, part in ((name, document[name]) for name in ("pool", "store"))
    ]
    head = ("kept as", "bytes a state", "computed", "measured", "off by")
    return [Table(head, rows, f"{document['sessions']:,} states: rows of live streams (pool), named sessions (store):")]


def budget_bars(document: Document) -> list[ShownBar]:
    return listed_bars(document["budgets"], limit="budget")


def none_of(names: Mapping[str, Any]) -> list[ShownBar]:
    """Counts that must be zero, and collections that must be empty."""
    counts = {name: found if isinstance(found, int) else len(found) for name, found in names.items()}
    return [ShownBar(name, f"{count}", "0", count == 0) for name, count in counts.items()]


def facts(*keys: str) -> Callable[[Document], list[Facts]]:
    """These fields of the document."""

    def parts(document: Document) -> list[Facts]:
        return [Facts({key.replace("_", " "): document[key] for key in keys})]

    return parts


def fault_facts(document: Document) -> list[Facts]:
    shown = {
        "kill": ("kills", "counts"),
        "sigterm": ("rounds", "streams", "outcomes", "slowest_end_seconds"),
        "storm": ("clients", "leaving_seconds", "good_clients"),
        "half-open": ("clients", "ended_by", "good_clients"),
    }
    return [
        Facts({f"{name}, {key.replace('_', ' ')}": document[name][key] for name, keys in shown.items() for key in keys})
    ]


def fault_bars(document: Document) -> list[ShownBar]:
    return [bar for name, part in document.items() for bar in named_bars(part["bars"], f"{name}: ")]


def attack_facts(document: Document) -> list[Facts]:
    attacks = document["attacks"].values()
    return [Facts({"attacks": len(attacks), "without a missed bar": sum(attack["passed"] for attack in attacks)})]


def attack_bars(document: Document) -> Iterator[ShownBar]:
    """One for an attack: met where all of its own are, else with the names of the missed ones."""
    for name, attack in document["attacks"].items():
        missed = [bar for bar, is_met in attack["bars"].items() if not is_met]
        calm, attacked = (f"{attack['live_ms'][phase]['p99']:.1f}" for phase in ("calm", "attacked"))
        found = f"{calm} → {attacked} ms, {attack['rss_mb']['peak']:.0f} MB{''.join(f'; not: {bar}' for bar in missed)}"
        yield ShownBar(f"`{name}`: {attack['about']}", found, f"{len(attack['bars'])} bars", not missed)


def wire_tables(document: Document) -> list[Table]:
    keys = ("connections", "answers", "refusals", "failing_connections", "served_baits")
    rows = [
        (name, *(f"{part[key]:,}" for key in keys), percent(part["rss"]["growth"])) for name, part in document.items()
    ]
    return [Table(("through", *(key.replace("_", " ") for key in keys), "memory growth"), rows)]


def wire_bars(document: Document) -> list[ShownBar]:
    return [
        ShownBar(
            f"{name}: no wrong answer, nothing lost, nothing held",
            told(part["problems"]),
            "none",
            part["is_met"],
        )
        for name, part in document.items()
    ]


def fuzz_bars(document: Document) -> list[ShownBar]:
    exit_code = document["schemathesis"]["exit_code"]
    return none_of({"mistakes": document["mistakes"], "exit code of Schemathesis": exit_code})


def bundle_bars(document: Document) -> list[ShownBar]:
    offered = document["offered_to_a_server"]
    return none_of(
        {
            "taken though signatures are asked for": document["not_refused_where_signatures_are_asked_for"],
            "trials ended by a signal": document["trials_ended_by_signal"],
            "files opened outside": document["opened_outside"],
            "server processes lost": offered["processes_lost"],
            "other answers changed": offered["other_answers"],
        }
    )


def rss_tables(document: Document) -> list[Table]:
    first, last = document["readings"][0], document["readings"][-1]
    rows = [
        (f"{reading['requests']:,}", *(f"{sum(reading[kind]) / 2**20:.1f}" for kind in ("rss", "uss")))
        for reading in (first, last)
    ]
    return [Table(("after requests", "resident, MiB", "of its own, MiB"), rows, f"Sent: {told(document['sent'])}.")]


def rss_bars(document: Document) -> list[ShownBar]:
    growth = document["rss_growth"]
    return [
        ShownBar("growth after the warm-up", percent(growth, 2), percent(LARGEST_GROWTH, 0), growth < LARGEST_GROWTH),
        *none_of({"requests answered wrongly": document["failed"]}),
        *named_bars({"the same processes to the end": document["is_same_processes"]}),
    ]


def page_tables(document: Document) -> list[Table]:
    moved, live = document["moved"], document["live"]
    rows = [
        (f"{moved['measurements']:,} measurements, dragged and zoomed", moved),
        (f"a stream of {live['a_second']} a second", live),
    ]
    return [
        Table(
            ("milliseconds between frames", "frames", "median", "99 %", "longest"),
            [(name, one["frames"], one["median_ms"], one["p99_ms"], one["longest_ms"]) for name, one in rows],
        )
    ]


def page_bars(document: Document) -> Iterator[ShownBar]:
    limits, paint, packed = document["limits"], document["first_paint_s"], document["compressed_bytes"]
    most = limits["first_paint_s"]
    yield ShownBar("first paint, longest of ten visits", f"{paint['longest']} s", f"{most} s", paint["longest"] <= most)
    yield ShownBar(
        "page, compressed", f"{packed:,} B", f"{limits['compressed_bytes']:,} B", packed <= limits["compressed_bytes"]
    )
    for name, part in (("measurements moved", document["moved"]), ("live stream", document["live"])):
        longest = part["longest_ms"]
        yield ShownBar(
            f"{name}, longest frame", f"{longest} ms", f"{limits['frame_ms']:g} ms", longest <= limits["frame_ms"]
        )
    live = document["live"]
    grown = live["heap_bytes_second_half"] / live["heap_bytes_first_half"]
    name = f"live stream of {live['minutes']:g} minutes, least heap of its second half over that of its first"
    yield ShownBar(name, f"{grown:.2f}", f"{limits['heap_grown']:g}", grown <= limits["heap_grown"])


SHOWN = {
    "page": Shown(page_tables, page_bars),
    **{f"load-{name}": Shown(load_tables, budget_bars) for name in ("filter-live", "text-64", "mixed", "overload")},
    "series": Shown(series_tables, series_bars),
    "load-overhead": Shown(overhead_tables, budget_bars),
    "load-idle-sessions": Shown(idle_tables, budget_bars),
    "faults": Shown(fault_facts, fault_bars, each),
    "reloads": Shown(facts("rounds", "outcomes", "counts"), lambda document: named_bars(document["bars"])),
    "attacks": Shown(attack_facts, attack_bars, lambda document: each(document["attacks"])),
    "wire": Shown(wire_tables, wire_bars, each),
    "api-fuzz": Shown(facts("raw_cases", "statuses", "after"), fuzz_bars),
    "bundles": Shown(facts("tried", "by_family", "longest_seconds", "offered_to_a_server"), bundle_bars),
    "state-mutations": Shown(
        facts("count", "offered_by_kind", "distinct_answers"),
        lambda document: none_of({"accepted": document["accepted"]}),
    ),
    "cut-points": Shown(
        facts("cuts", "cuts_by_form", "answers_compared"),
        lambda document: none_of({"streams that differ": document["streams_that_differ"]}),
    ),
    "seat-reuse": Shown(
        facts("acquired", "visits", "answers_compared", "without_padding", "without_zeroing"),
        lambda document: none_of({"wrong answers": document["wrong"], "leaks": document["leaks"]}),
    ),
    "rss-soak": Shown(rss_tables, rss_bars),
}
