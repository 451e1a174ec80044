"""BLiMP: which of two sentences that differ in one point of grammar a language model finds more probable.

A sentence stands after a line break, as the first of a paragraph does in the training texts. Its score is the sum of
its log probabilities. Published figures are the means over all paradigms of the repository's own summary.

Source: Warstadt et al., BLiMP: The Benchmark of Linguistic Minimal Pairs for English, TACL 2020.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from rfa.measured import origin, write_result
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.text.contexts import SlotContext
from rfa.runtime.text.language import Language
from rfa.runtime.text.loading import load_on_cpu
from rfa.runtime.text.scores import score_tokens

MODELS = {"ngram": "5-gram", "lstm": "LSTM", "txl": "Transformer-XL", "gpt2": "GPT-2"}
SUMMARY = Path("raw_results") / "summary" / "models_summary.jsonl"


def log_likelihood(model: Language, sentence: str) -> float:
    """Return the log-likelihood in nats of a sentence after a line break, in recurrent mode."""
    tokens = model.vocabulary.encode(f"\n{sentence}")
    context = cast(SlotContext, model.start("recurrent"))
    try:
        logits, _ = model.logits_of(context, tokens[:-1])
    finally:
        context.release()
    temperature = model.confidence("recurrent").temperature
    return math.fsum(score_tokens(logits, tokens[1:], temperature, 0).log_probability)


def run_blimp(folder: Path, bundle: Path, most: int) -> dict[str, Any]:
    """Compare the pairs of a checkout of BLiMP.

    Args:
        most: Number of pairs of each of the 67 paradigms, from the first one on.

    Raises:
        FileNotFoundError: the folder has no data/*.jsonl.
    """
    files = sorted((folder / "data").glob("*.jsonl"))
    if not files:
        raise FileNotFoundError(f"{folder} has no data/*.jsonl: it is not a checkout of BLiMP")
    opened = open_bundle(bundle)
    model = load_on_cpu(opened, "auto", 2, 1)
    paradigms = {}
    for file in tqdm(files, unit="paradigm"):
        pairs = [json.loads(line) for line in file.read_text().splitlines()[:most]]
        right = [
            log_likelihood(model, pair["sentence_good"]) > log_likelihood(model, pair["sentence_bad"]) for pair in pairs
        ]
        paradigms[file.stem] = {"field": pairs[0]["linguistics_term"], "pairs": len(pairs), "accuracy": _mean(right)}
    terms = sorted({row["field"] for row in paradigms.values()})
    count, accuracy = (
        sum(row["pairs"] for row in paradigms.values()),
        _mean([r["accuracy"] for r in paradigms.values()]),
    )
    return {
        **origin("rfa bench blimp"),
        "bundle": opened.name,
        "digest": opened.digest,
        "pairs": count,
        "accuracy": accuracy,
        "error": math.sqrt(accuracy * (1 - accuracy) / count),
        "terms": {term: _mean([r["accuracy"] for r in paradigms.values() if r["field"] == term]) for term in terms},
        "paradigms": paradigms,
        "published": _published(folder / SUMMARY),
    }


def write_blimp(folder: Path, bundle: Path, most: int, out: Path) -> dict[str, Any]:
    """Write the document of `run_blimp` to a JSON file."""
    document = run_blimp(folder, bundle, most)
    write_result(out, document)
    return document


def _mean(numbers: list[Any]) -> float:
    return statistics.fmean(map(float, numbers))


def _published(summary: Path) -> dict[str, float]:
    """Return the mean accuracy of each model of the summary, whose rows are paradigms."""
    rows = [json.loads(line) for line in summary.read_text().splitlines()] if summary.is_file() else []
    return {title: _mean([row[name] for row in rows]) for name, title in MODELS.items() if rows}
