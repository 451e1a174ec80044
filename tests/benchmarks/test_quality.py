"""The quality table in small, scored again by plain loops."""

import json
import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from rfa.benchmarks.language.quality.bars import bars, paired
from rfa.benchmarks.language.quality.scores import Scoring
from rfa.benchmarks.language.quality.table import QualityPlan, write_quality
from rfa.model.checkpoint import load_run
from rfa.training.corpus import encode_files

MODEL = {"vocab_size": 270, "d_model": 16, "n_layers": 2, "n_heads": 2, "head_dim": 4, "n_slots": 2}
TRAINING = {"steps": 8, "batch": 4, "context": 16, "learning_rate": 0.01, "validate_every": 4, "precision": "fp32"}
SCORING = Scoring((1, 2, 4), 128)
# It trains models, in processes of their own.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    words = np.random.default_rng(0).choice(["the", "cat", "dog", "sat", "on", "a", "mat", "or", "log"], 4000)
    for split, part in (("train", words[:3000]), ("valid", words[3000:3400]), ("test", words[3400:])):
        (folder / f"{split}.txt").write_text(" ".join(part))
    return folder


def tiny(data, folder, variants=("both", "B1"), **options):
    config = folder / "tiny.json"
    config.write_text(json.dumps({"model": MODEL, "training": TRAINING}))
    return QualityPlan(data, folder / "runs", str(config), variants, **{"seeds": (0,), "scoring": SCORING, **options})


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quality")
    plan = tiny(data, folder, ("both", "B1", "M2"))
    document = write_quality(plan, folder / "table.json")
    return SimpleNamespace(plan=plan, document=document, folder=folder)


def scores(document, variant):
    (row,) = (row for row in document["runs"] if row["variant"] == variant)
    return {(part["windows"], part["mode"], part["length"]): part for part in row["scores"]}


@cache
def stepped(model, window):
    """Logits after every token of a window, one step at a time."""
    state, logits = model.init_state(1), []
    for token in window:
        output, state = model.step(torch.tensor([token]), state)
        logits.append(output.logits[0])
    return logits


@pytest.mark.parametrize("windows", ["separate", "sliding"])
@pytest.mark.parametrize("mode", ["attention", "recurrent"])
def test_perplexity_equals_a_plain_loop(done, data, windows, mode):
    """Token by token: the window that each is scored in, from the definition."""
    run = done.plan.runs / "both-s0"
    model, length, first = load_run(run), 32, 32
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    tokens = encode_files(tokenizer, [data / "test.txt"]).astype(np.int64)
    model.mode = mode
    total = 0.0
    for i in range(SCORING.tokens):
        target = first + 1 + i
        if windows == "separate":
            start = first + i // length * length
        else:  # the window ends with the half that the target is in
            start = first + (i // (length // 2) + 1) * (length // 2) - length
        with torch.no_grad():
            if mode == "attention":
                logits = model(torch.tensor(tokens[None, start:target])).logits[0, -1]
            else:
                logits = stepped(model, tuple(tokens[start : start + length]))[target - 1 - start]
        total -= float(torch.log_softmax(logits.double(), 0)[tokens[target]])
    row = scores(done.document, "both")[windows, mode, length]
    # float32 sums of a 16-wide model.
    assert row["nats_per_token"] == pytest.approx(total / SCORING.tokens, rel=1e-5)
    assert row["perplexity"] == pytest.approx(math.exp(row["nats_per_token"]))
    text = tokenizer.decode(tokens[first + 1 : first + 1 + SCORING.tokens])
    assert row["bits_per_byte"] == pytest.approx(total / math.log(2) / len(text.encode()), rel=1e-5)


def made_up(nats):
    """A table of `nats[variant][factor]`: one loss a seed, in both kinds of window."""
    runs = [
        {
            "variant": variant,
            "seed": seed,
            "parameters": 1,
            "scores": [
                {"windows": windows, "mode": "attention", "length": 16 * factor, "nats_per_token": losses[seed],
                 "bits_per_byte": losses[seed]}
                for factor, losses in by_factor.items()
                for windows in ("separate", "sliding")
            ],
        }
        for variant, by_factor in nats.items()
        for seed in range(3)
    ]  # fmt: skip
    return {"context": 16, "factors": [1, 4], "runs": runs, "variants": {name: {"title": name} for name in nats}}


def test_claims_are_held_against_the_seeds_pair_by_pair():
    # M2 is below B1 by 0.1, 0.2 and 0.3 nats of the same seed; the seeds differ by more than that.
    document = made_up(
        {"M2": {1: (1.0, 2.0, 3.0), 4: (1.0, 2.0, 3.0)}, "B1": {1: (1.1, 2.2, 3.3), 4: (1.05, 2.2, 3.2)}}
    )
    by_name = {bar["name"]: bar for bar in bars(document)}
    within = by_name["M2 < B1 at 1×"]
    assert within["met"] and within["separate"] == within["sliding"]
    assert within["separate"]["ratio"] == pytest.approx(math.exp(-0.2))
    assert within["separate"]["standard_error"] == pytest.approx(0.1 / math.sqrt(3))
    assert (within["separate"]["agree"], within["separate"]["seeds"]) == (3, 3)
    far = by_name["M2 ≤ 0.9 · B1 at 4×"]  # 0.05 nats is less than a tenth
    assert far["met"] and far["separate"]["agree"] == 2
    assert by_name["M2 < M1 at 1×"]["met"] is None
    document["bars"] = bars(document)
    assert paired({0: 1.0}, {0: 0.5}, 1.0) == {
        "ratio": pytest.approx(math.exp(0.5)), "standard_error": None, "seeds": 1, "agree": 0
    }  # fmt: skip
