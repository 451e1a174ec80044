"""What the language models reach: quality, calibration, memory, cost, and the kernels they are trained with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rfa.benchmarks.results_page.parts import Document, Shown, ShownBar, Table, listed_bars, percent

MODES = ("attention", "recurrent")
REFERENCE = ("M2", "attention")
# Rows of the kernels that are shown; the file has every shipped shape.
KERNELS = ("forward 64 bf16", "forward 128 bf16", "backward rows 64 bf16", "backward columns 64 bf16")
KERNEL_COLUMNS = {
    "registers": "registers",
    "loop_spills": "spills in the main loop",
    "shared_bytes": "shared memory",
    "instructions_per_score": "instructions a score",
    "mufu_per_score": "special functions a score",
}


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
    note = f"Perplexity a token / bits a byte on {first[0]['tokens']:,} tokens, by the length of the window:"
    baselines = [(name, f"{row['bits_per_byte']:.3f}") for name, row in document["baselines"].items()]
    return [
        Table(("model, mode", "parameters", *(f"{length:,}" for length in lengths)), rows, note),
        Table(("baseline", "bits a byte"), baselines, "Of both test novels:"),
    ]


def confidence_tables(document: Document) -> list[Table]:
    errors = [
        (f"{mode}, {token}", *(percent(stage["ece"], 2) for stage in stages.values()), *_served(stages["served"]))
        for mode, part in document["modes"].items()
        for token, stages in part["calibration"]["rules"].items()
    ]
    return [
        Table(
            ("mode, token", "softmax alone", "served", "95 % interval", "a perfect model"),
            errors,
            f"Expected calibration error on {document['tokens']['test']:,} tokens, of the most likely token (top) and "
            "of a drawn one; a perfect model shows the last column on as many:",
        ),
    ]


def confidence_bars(document: Document) -> list[ShownBar]:
    return listed_bars(document["bars"])


def _served(stage: Document) -> tuple[str, str]:
    low, high = stage["interval"]
    return f"{percent(low, 2)} to {percent(high, 2)}", percent(stage["floor"], 2)


def uncertainty_tables(document: Document) -> list[Table]:
    """What each signal adds to the softmax, and the loss of the mixture."""
    tables = []
    for mode, part in document["modes"].items():
        base = part["baselines"]["softmax"]
        rows = [
            (
                f"`{name}`",
                f"{part['alone'][name]:.3f}",
                _gained(gain["log_loss"], base["log_loss"]),
                _gained(gain["auroc"], 1),
                _gained(gain["explained"], 1),
            )
            for name, gain in base["gains"].items()
        ]
        note = (
            f"{mode.capitalize()}: {percent(part['is_wrong'])} of the most likely tokens are wrong; the softmax tells "
            f"them with a log loss of {base['log_loss']:.3f} nats and an AUROC of {base['auroc']:.3f}, and explains "
            f"{percent(base['explained'])} of the variance of the loss. What else there is, its AUROC alone, and what "
            "it adds, with 95 % intervals: of the log loss, to the AUROC, to what is explained. The correlation of "
            f"`precision` with `place` is {part['precision_with_place']:.3f}:"
        )
        tables.append(Table(("signal", "alone", "log loss, %", "AUROC, %", "explained, %"), rows, note))
    losses = [
        (
            f"{mode}, {stage}",
            *(f"{part['mixture']['nats_per_token'][f'{name}, {stage}']:.4f}" for name in ("mean", "mixture")),
            _gained(part["mixture"]["saved"][stage], part["mixture"]["nats_per_token"][f"mean, {stage}"]),
        )
        for mode, part in document["modes"].items()
        for stage in part["mixture"]["saved"]
    ]
    note = (
        f"Nats a token of the mean of the latent and of the mixture over {document['paths']} samples of it, as they "
        "are and each at its best temperature; a sample costs "
        f"{percent(document['path_cost'])} of the products of a step:"
    )
    return [*tables, Table(("mode", "mean", "mixture", "saved, %"), losses, note)]


def _gained(found: Document, of: float) -> str:
    low, high = (100 * end / of for end in found["interval"])
    return f"{100 * found['value'] / of:+.2f} ({low:+.2f} to {high:+.2f})"


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
    note = f"Share of {document['plan']['answers']:,} answers that are right, by {noun}:"
    return Table((task, *heads, "held"), shown, note)


def recall_bars(document: Document) -> list[ShownBar]:
    return listed_bars(document["bars"])


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
        f"Perplexity on {document['tokens']:,} tokens by the length of separate windows, mean ± standard deviation "
        "over the seeds, and its ratio to M2, seed by seed:"
    )
    tables = [
        Table(
            (
                "model",
                "",
                "seeds",
                *(f"{length:,}" for length in lengths),
                *(f"of M2, {n:,}" for n in (lengths[0], far)),
            ),
            rows,
            note,
        )
    ]
    speeds: dict[tuple[str, str], dict[str, str]] = {}
    for row in document["speed"]["rows"] if document["speed"] else ():
        told = f"{row['tokens_per_second']:,} ({row['over_first']:.2f})"
        speeds.setdefault((row["variant"], row["mode"]), {})[row["pass"]] = told
    if speeds:
        shown = [(f"{name}, {mode}", row["forward"], row["training"]) for (name, mode), row in speeds.items()]
        note = "Tokens a second on one core, without the fused kernels of GPUs (of those of B1, in the same round):"
        tables.append(Table(("model", "reads", "trains"), shown, note))
    return tables


Losses = dict[tuple[str, str], dict[int, dict[int, float]]]


def _losses(document: Document) -> Losses:
    """Nats a token in separate windows, by variant and mode, length and seed."""
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
        told = f"{found['ratio']:.3f}{error} ({found['agree']} of {found['seeds']} seeds)"
        yield ShownBar(bar["name"], told, f"{bar['limit']:g}", bar["met"])


def decode_tables(document: Document) -> list[Table]:
    return [
        Table(
            ("case", "median, ms", "20 to 80 %"),
            [
                (name, f"{case['median_us'] / 1000:.2f}", f"{case['p20_us'] / 1000:.2f} to {case['p80_us'] / 1000:.2f}")
                for name, case in document["cases"].items()
            ],
            f"One token of `{document['bundle']}` on {document['threads']} thread:",
        )
    ]


def kernel_tables(document: Document) -> list[Table]:
    rows: list[dict[str, Any]] = [row for row in document["rows"] if row["kernel"] in KERNELS]
    return [
        Table(
            ("kernel", *KERNEL_COLUMNS.values()),
            [
                (f"{row['kernel']}, sm_{row['architecture']}", *(f"{row[name]:g}" for name in KERNEL_COLUMNS))
                for row in rows
            ],
            f"Triton {document['triton']}; {len(document['rows'])} shapes are in the file:",
        )
    ]


def kernel_bars(document: Document) -> list[ShownBar]:
    return listed_bars(document["bars"])


def cost_tables(document: Document) -> list[Table]:
    def ends(values: Mapping[str, float] | None) -> str:
        return "–" if values is None else f"{values['predicted']:,g} ({values['bound']:,g} to {values['serial']:,g})"

    calls = [
        (
            f"{row['gpu']}, {row['pass']}, {row['width']} reals, {row['length']:,} tokens",
            *(ends(row[name]) for name in ("microseconds", "tflops", "over_flash")),
            row["bound_by"] + "".join(f"; {name} does not compile" for name in row["refused"]),
        )
        for row in document["rows"]
    ]
    checks = [
        (
            f"{row['gpu']}, {row['year']}, {row['width']} reals, {row['length']:,} tokens"
            f"{', causal' if row['is_causal'] else ''}",
            ends(row),
            f"{row['tflops']:g}",
            f"{row['predicted'] / row['tflops']:.2f}",
        )
        for row in document["check"]
    ]
    plan = document["plan"]
    return [
        Table(
            ("call", "µs", "TFLOP/s", "time over FlashAttention-2's", "bound by"),
            calls,
            f"Predicted, in brackets if all overlaps and if nothing does; {plan['tokens']:,} tokens, {plan['hidden']:,}"
            f" reals, {plan['dtype']}, causal, Triton {document['triton']}:",
        ),
        Table(
            ("softmax attention", "TFLOP/s of the model", "published", "model over published"),
            checks,
            "The model on a kernel whose speed is known, the best of the blocks tried:",
        ),
    ]


def cost_bars(document: Document) -> list[ShownBar]:
    return [
        ShownBar(f"model: {bar['name']}", f"{bar['actual']:g} ({bar['least']:g} to {bar['most']:g})", f"{bar['bar']:g}",
                 bar["met"])
        for bar in document["bars"]
    ]  # fmt: skip


SHOWN = {
    "language": Shown(language_tables),
    "token-calibration": Shown(confidence_tables, confidence_bars),
    "token-uncertainty": Shown(uncertainty_tables),
    "quality-small": Shown(quality_tables, quality_bars, lambda document: [document, document["speed"]]),
    "recall": Shown(recall_tables, recall_bars, lambda document: document["rows"]),
    "decode": Shown(decode_tables),
    "aot": Shown(kernel_tables, kernel_bars),
    "cost": Shown(cost_tables, cost_bars),
}
