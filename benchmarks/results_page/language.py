"""Tables and targets of language models on the results page that need a computation. All others are declared in
tables.toml."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from rfa.benchmarks.results_page.parts import Document, ShownBar, Table, percent

MODES = ("attention", "recurrent")
REFERENCE = ("M2", "attention")


def language_tables(document: Document) -> list[Table]:
    rows = []
    for name, model in document["models"].items():
        for mode in MODES:
            scores = [score for score in model["scores"] if score["mode"] == mode]
            if scores:
                cells = [f"{score['perplexity']:.2f} / {score['bits_per_byte']:.3f}" for score in scores]
                rows.append((f"`{name}`, {mode}", f"{model['parameters']:,}", *cells))
    first = next(iter(document["models"].values()))["scores"]
    lengths = dict.fromkeys(score["length"] for score in first)
    note = (
        "The cells contain the perplexity per token and the bits per byte (separated by a slash) on "
        f"{first[0]['tokens']:,} tokens, by window length."
    )
    baselines = [(name, f"{row['bits_per_byte']:.3f}") for name, row in document["baselines"].items()]
    return [
        Table(("model, mode", "parameters", *(f"{length:,}" for length in lengths)), rows, note),
        *_passes_tables(document),
        Table(("baseline", "bits per byte"), baselines, "The baselines are evaluated on both test novels."),
    ]


def _passes_tables(document: Document) -> list[Table]:
    """Return the table of the models whose requests choose the number of reweighting passes, if there are any."""
    found = [(name, row) for name, model in document["models"].items() for row in model.get("passes", ())]
    if not found:
        return []
    rows = [
        (
            f"`{name}`, {row['passes']}",
            f"{row['score']['perplexity']:.2f} / {row['score']['bits_per_byte']:.4f}",
            *("–" if cost is None else f"{cost:.1f}" for cost in (row["prompt_us"], row["step_us"])),
        )
        for name, row in found
    ]
    score = found[0][1]["score"]
    note = (
        f"The next table compares numbers of reweighting passes (`passes`) in recurrent mode, on {score['tokens']:,} "
        f"tokens in windows of {score['length']:,}. CPU times are per token on one core, for a prompt and for decoding "
        "one text."
    )
    head = "model, passes", "perplexity / bits per byte", "prompt, µs per token", "decoding, µs per token"
    return [Table(head, rows, note)]


def recall_tables(document: Document) -> list[Table]:
    return [_recall_of(document, task, noun) for task, noun in (("recall", "pairs"), ("copy", "symbols"))]


def _recall_of(document: Document, task: str, noun: str) -> Table:
    rows = [row for row in document["rows"] if row["task"] == task]
    found = [{(cell["size"], cell["filler"]): cell["accuracy"] for cell in row["scores"]} for row in rows]
    cells = sorted({cell for row in found for cell in row}, key=lambda cell: cell[::-1])
    heads = [f"{size}" if not filler else f"{size}, {filler:,} later" for size, filler in cells]
    shown = [
        (row["title"], *(f"{scores[cell]:.3f}" if cell in scores else "–" for cell in cells), row["capacity"])
        for row, scores in zip(rows, found, strict=True)
    ]
    note = (
        f"The table shows the proportion of correct answers (of {document['plan']['answers']:,}), by number of {noun}."
    )
    return Table((task, *heads, "held"), shown, note)


def quality_tables(document: Document) -> list[Table]:
    lengths = [factor * document["context"] for factor in document["factors"]]
    far = document["context"] * 8
    reference = _losses(document).get(REFERENCE, {})
    rows = [
        (
            name if mode == "attention" else f"{name} ({mode})",
            document["variants"][name]["title"],
            len(losses[document["context"]]),
            *(_spread([math.exp(loss) for loss in losses[length].values()]) for length in lengths),
            *(_ratio(losses.get(length, {}), reference.get(length, {})) for length in (document["context"], far)),
        )
        for (name, mode), losses in _losses(document).items()
    ]
    note = (
        f"Perplexity is computed on {document['tokens']:,} tokens in separate windows, by their length. Values are "
        "means ± standard deviations over the seeds. Ratios are relative to M2 with the same seed."
    )
    tables = [
        Table(
            (
                "model",
                "",
                "seeds",
                *(f"{length:,}" for length in lengths),
                *(f"relative to M2, {n:,}" for n in (lengths[0], far)),
            ),
            rows,
            note,
        )
    ]
    speeds: dict[tuple[str, str], dict[str, str]] = {}
    for row in document["speed"]["rows"] if document["speed"] else ():
        text = f"{row['tokens_per_second']:,} ({row['over_first']:.2f})"
        speeds.setdefault((row["variant"], row["mode"]), {})[row["pass"]] = text
    if speeds:
        shown = [(f"{name}, {mode}", row["forward"], row["training"]) for (name, mode), row in speeds.items()]
        note = (
            "The next table shows tokens per second on one core, without fused GPU kernels. Values in brackets are "
            "relative to B1 in the same round."
        )
        tables.append(Table(("model", "reads", "trains"), shown, note))
    return tables


Losses = dict[tuple[str, str], dict[int, dict[int, float]]]


def _losses(document: Document) -> Losses:
    """Return the loss in nats per token in separate windows, by variant and mode, length and seed."""
    found: Losses = {}
    for name in document["variants"]:
        for row in document["runs"]:
            for score in row["scores"] if row["variant"] == name else ():
                if score["windows"] == "separate":
                    by_length = found.setdefault((name, score["mode"]), {})
                    by_length.setdefault(score["length"], {})[row["seed"]] = score["nats_per_token"]
    return found


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def _ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    logs = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
    return f"{math.exp(statistics.mean(logs)):.3f}" if logs else "–"


def quality_bars(document: Document) -> Iterator[ShownBar]:
    for bar in document["bars"]:
        found = bar["separate"]
        if found is None:
            yield ShownBar(bar["name"], "–", f"{bar['limit']:g}", None)
            continue
        error = "" if found["standard_error"] is None else f" ± {percent(found['standard_error'])}"
        text = f"{found['ratio']:.3f}{error} ({found['agree']} of {found['seeds']} seeds)"
        yield ShownBar(bar["name"], text, f"{bar['limit']:g}", bar["met"])


def quality_origins(document: Document) -> list[Document]:
    """Return the origins of the file and of its speeds, if measured."""
    return [document, *([document["speed"]] if document["speed"] else [])]
