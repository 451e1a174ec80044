"""The README's results are the committed measurements, not memories of them."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def read(name):
    return json.loads((ROOT / "bench" / "results" / name).read_text())


@pytest.mark.parametrize(
    "title, model, mode",
    [
        ("`books`, recurrent", "books", "recurrent"),
        ("`books`, attention", "books", "attention"),
        ("RoPE softmax", "books_rope", "attention"),
    ],
)
def test_language_rows(title, model, mode):
    scores = {row["length"]: row for row in read("language.json")["models"][model]["scores"] if row["mode"] == mode}
    cells = [f"{scores[n]['perplexity']:.2f} / {scores[n]['bits_per_byte']:.3f}" for n in (256, 1024, 4096)]
    assert f"| {title} | {' | '.join(cells)} |" in README


def test_baseline_rows():
    baselines = read("language.json")["baselines"]
    unigram = baselines["unigram"]
    assert f"| unigram | {unigram['perplexity']:.1f} / {unigram['bits_per_byte']:.3f} |" in README
    cells = "; ".join(f"{baselines[name]['bits_per_byte']:.3f}" for name in ("gzip", "xz", "xz_after_train"))
    assert f"| {cells} |" in README


def test_filter_rows():
    rows = read("filter.json")["rows"]
    assert len(rows) == 6
    for row in rows:
        columns = ("raw", "kalman", "oracle", "linear recurrent", "oscillator recurrent")
        cells = " | ".join(f"{row['rmse'][name]:.3f}" for name in columns)
        assert f"| ({row['sigma2']}, {row['eta2']}), {row['data']} | {cells} |" in README


def test_filter_coverage_sentence():
    rows = read("filter.json")["rows"]
    for model in ("linear", "oscillator"):
        coverage = [row["coverage"][f"{model} recurrent"] for row in rows]
        state, forecast = (
            max(abs(100 * (share - float(level))) for part in parts for level, share in part.items())
            for parts in ([c["state"] for c in coverage], [c["forecast"]["1"] for c in coverage])
        )
        assert f"`{model}` state {state:.1f}, one-step forecast {forecast:.1f}" in README


def test_decode_row():
    cases = read("decode.json")["cases"]
    names = ("recurrent at 100", "recurrent at 100000", "cache of 512", "cache of 4096")
    cells = " | ".join(f"{cases[name]['median_us'] / 1000:.2f}" for name in names)
    assert f"| {cells} |" in README
