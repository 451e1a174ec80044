"""Configurations and records of small language runs for the tests of training."""

import json

MODEL = {"vocab_size": 270, "d_model": 24, "n_layers": 2, "n_heads": 2, "head_dim": 6, "n_slots": 2}
TRAINING = {"steps": 12, "batch": 4, "context": 32, "learning_rate": 0.01, "validate_every": 6, "precision": "fp32"}


def scaled_error(actual, expected):
    """The largest error relative to the largest value."""
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


def write_config(folder, **training):
    path = folder / "tiny.json"
    path.write_text(json.dumps({"model": MODEL, "training": {**TRAINING, **training}}))
    return str(path)


def rows(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
