"""The benchmark of scored prompts on the default bundle, shortened."""

from pathlib import Path

from rfa.benchmarks.language import scoring

BOOKS = Path(__file__).parents[2] / "bundles" / "books"


def test_every_part_is_measured_beside_reading():
    document = scoring.run_scoring(BOOKS, rounds=2)
    parts = document["parts"]
    assert list(parts) == ["prefill", "logits", "vocabulary", "scores", "logits and scores"]
    assert parts["prefill"]["over_prefill"] == 1
    assert all(part["us_per_token"] > 0 for part in parts.values())
