"""Recall and copying: the sequences against a dictionary, the scores against oracles, the experiment in small."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rfa.benchmarks.papers.recall import table as recall
from rfa.benchmarks.papers.recall.table import (
    RecallPlan,
    available,
    bars,
    capacity,
    merged,
    model_config,
    right_answers,
    score,
)
from rfa.benchmarks.papers.recall.tasks import (
    CHANCE,
    FIRST_KEY,
    FIRST_VALUE,
    JOINT_VOCABULARY,
    MARKER,
    N_KEYS,
    N_VALUES,
    NO_ANSWER,
    VOCABULARY,
    Curriculum,
    RecallConfig,
    answers,
    copy_batch,
    recall_batch,
    train_recall,
    training_batch,
)
from rfa.benchmarks.results_page.page import tables_of
from rfa.runtime.text.config import LanguageModelConfig

TINY = RecallConfig("recall", (1,), steps=4, tokens=64, keys=8, max_filler=4)
SMALL = {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 1, "n_heads": 2, "head_dim": 8}


def looked_up(row):
    """The answers of a row of recall, by a dictionary."""
    marker = row.index(MARKER)
    existing, place = {}, 0
    while place < marker and row[place] >= FIRST_KEY:
        existing[row[place]] = row[place + 1]
        place += 2
    return [existing[key] for key in row[marker + 1 :]]


class Guesser:
    """Stands for a model: its first choice at every position of a row is what `choose` says."""

    def __init__(self, choose):
        self.choose = choose

    def __call__(self, tokens, *, with_precision):
        choices = torch.tensor([self.choose(row) for row in tokens.tolist()])
        return SimpleNamespace(logits=torch.nn.functional.one_hot(choices, VOCABULARY).float())


def remember(row):
    found = looked_up(row)
    return [0] * (len(row) - len(found)) + found


@pytest.mark.parametrize(("pairs", "filler", "keys"), [(1, 0, 1), (4, 0, 64), (16, 5, 16), (64, 3, 128)])
def test_a_dictionary_answers_every_query(pairs, filler, keys):
    batch = recall_batch(3, 7, 20, pairs, keys=keys, filler=filler)
    assert batch.tokens.shape == batch.targets.shape == (20, 3 * pairs + filler + 1)
    for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        written, asked = row[: 2 * pairs], row[-pairs:]
        assert len(set(written[::2])) == pairs and sorted(asked) == sorted(written[::2])
        assert all(FIRST_KEY <= key < FIRST_KEY + keys for key in asked)
        assert all(FIRST_VALUE <= value < FIRST_VALUE + N_VALUES for value in written[1::2])
        assert all(token < MARKER for token in row[2 * pairs : 2 * pairs + filler])
        assert targets == [NO_ANSWER] * (len(row) - pairs) + looked_up(row)


def test_a_joint_pair_is_one_token_that_says_both():
    shape = {"keys": 32, "filler": 2}
    apart, joint = recall_batch(3, 7, 40, 16, **shape), recall_batch(3, 7, 40, 16, joint=True, **shape)
    assert joint.tokens.shape == joint.targets.shape == (40, 2 * 16 + 2 + 1)
    pairs = zip(apart.tokens[:, :32:2].flatten().tolist(), apart.tokens[:, 1:32:2].flatten().tolist(), strict=True)
    names = {pair: VOCABULARY + (pair[0] - FIRST_KEY) * 64 + pair[1] - FIRST_VALUE for pair in pairs}
    assert joint.tokens[:, :16].flatten().tolist() == [
        names[pair] for row in apart.tokens[:, :32].tolist() for pair in zip(row[::2], row[1::2], strict=True)
    ]
    assert min(names.values()) >= VOCABULARY and max(names.values()) < JOINT_VOCABULARY
    # From the filler on the sequences are the same.
    assert torch.equal(joint.tokens[:, 16:], apart.tokens[:, 32:])
    assert torch.equal(joint.targets[:, 16:], apart.targets[:, 32:]) and bool((joint.targets[:, :16] < 0).all())
    with pytest.raises(ValueError, match="pairs <= keys <= 32"):
        recall_batch(0, 0, 1, 4, keys=33, joint=True)
    for step in range(20):
        assert training_batch(replace(TINY, joint=True, tokens=256), step, (2, 4))[0].tokens.numel() <= 256


def test_values_and_order_are_random():
    batch = recall_batch(0, 0, 200, 8)
    assert torch.unique(batch.tokens[:, 1]).numel() > N_VALUES / 2
    in_order = (batch.tokens[:, -8:] == batch.tokens[:, :16:2]).float().mean()
    # A random order leaves 1/8 in place; the mean of 1,600 strays six deviations with odds of 1e-9.
    assert abs(float(in_order) - 1 / 8) < 6 * (1 / 8 * 7 / 8 / 200) ** 0.5


@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_copy_repeats_its_string(length):
    batch = copy_batch(1, 2, 10, length)
    for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        string = row[:length]
        assert row == [*string, MARKER, *string[:-1]]
        assert targets == [NO_ANSWER] * length + string
        assert all(FIRST_KEY <= symbol < FIRST_KEY + N_KEYS for symbol in string)


@pytest.mark.parametrize("make", [recall_batch, copy_batch])
def test_a_batch_follows_from_seed_step_and_split(make):
    batch = make(1, 5, 4, 8)
    assert torch.equal(batch.tokens, make(1, 5, 4, 8).tokens)
    others = make(2, 5, 4, 8), make(1, 6, 4, 8), make(1, 5, 4, 8, split="test")
    assert all(not torch.equal(batch.tokens, other.tokens) for other in others)


@pytest.mark.parametrize(("pairs", "keys"), [(0, 8), (9, 8), (4, N_KEYS + 1)])
def test_pairs_that_do_not_fit_are_refused(pairs, keys):
    with pytest.raises(ValueError, match="pairs and keys"):
        recall_batch(0, 0, 1, pairs, keys=keys)


def test_an_oracle_answers_everything_and_a_constant_is_at_chance():
    batch = recall_batch(0, 1, 300, 16, filler=3)
    assert score(right_answers(Guesser(remember), batch))["accuracy"] == 1.0
    found = score(right_answers(Guesser(lambda row: [FIRST_VALUE + 5] * len(row)), batch))
    chance, total = CHANCE["recall"], 300 * 16
    assert found["answers"] == total and found["exact"] == 0.0
    assert abs(found["accuracy"] - chance) < 6 * (chance * (1 - chance) / total) ** 0.5


def test_the_interval_is_wilsons():
    right = torch.zeros(50, 4, dtype=torch.bool)
    right.view(-1)[:150] = True
    found, z, share, n = score(right), 1.959964, 0.75, 200
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    assert found["accuracy"] == share
    assert abs(found["low"] - (middle - half)) < 1e-6 and abs(found["high"] - (middle + half)) < 1e-6
    assert found["exact"] == 37 / 50


def test_exact_is_the_share_that_greedy_decoding_copies():
    def choose(row):
        """Copies, but forgets where the last symbol seen was 1 modulo 40."""
        length = row.index(MARKER)
        copied = [row[i - length] if row[i] % 40 != 1 else 0 for i in range(length, len(row))]
        return [0] * length + copied

    batch = copy_batch(0, 0, 200, 12)
    exact = 0
    for row in batch.tokens.tolist():
        decoded = row[:13]
        for _ in range(12):
            decoded.append(choose(decoded)[-1])
        exact += decoded[13:] == row[:12]
    assert 0 < exact < 200
    assert score(right_answers(Guesser(choose), batch))["exact"] == pytest.approx(exact / 200)


def test_a_size_opens_when_the_one_before_is_learned():
    curriculum = Curriculum(RecallConfig("recall", (2, 4, 8), promote=0.9, stop=0.95))
    while curriculum.sizes == (2,):
        before = curriculum.accuracy[2]
        curriculum.record(2, 1.0)
    assert before < 0.9 <= curriculum.accuracy[2]
    # The next needs answers of its own.
    curriculum.record(2, 1.0)
    assert curriculum.sizes == (2, 4) and not curriculum.is_done
    for _ in range(60):
        curriculum.record(4, 1.0)
    assert curriculum.sizes == (2, 4, 8) and not curriculum.is_done
    for _ in range(60):
        curriculum.record(8, 1.0)
    assert curriculum.sizes == (2, 4, 8) and not curriculum.is_done
    # Nor may the sizes before be lost.
    for _ in range(60):
        curriculum.record(2, 1.0)
    assert curriculum.is_done


def test_training_batches_have_open_sizes_and_bounded_filler():
    config = replace(TINY, tokens=256, max_filler=4)
    seen, fillers = set(), set()
    for step in range(60):
        batch, size = training_batch(config, step, (1, 2, 4))
        seen.add(size)
        fillers.add(batch.tokens.shape[1] - 3 * size - 1)
        assert batch.tokens.numel() <= 256
    assert seen == {1, 2, 4} and fillers == {0, 1, 2, 3, 4}
    # Pairing is learned first, without filler.
    assert all(training_batch(config, step, (2,))[0].tokens.shape[1] == 7 for step in range(20))


@pytest.mark.slow
def test_a_tiny_model_learns_and_repeats():
    config = replace(TINY, steps=80, tokens=96, max_filler=0, learning_rate=1e-2)
    model = LanguageModelConfig.from_dict({**SMALL, "n_slots": 2})
    trained = train_recall(model, config, "recurrent")
    batch = recall_batch(0, 0, 300, 1, keys=8, split="test")
    with torch.no_grad():
        logits, targets = answers(trained.model, batch)
    # A guess gets 1/64.
    assert float((logits.argmax(-1) == targets).float().mean()) > 0.5
    short = replace(config, steps=5)
    first, second = (train_recall(model, short, "recurrent").model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = train_recall(model, replace(short, seed=1), "recurrent").model.state_dict()
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_training_stops_when_the_task_is_learned(monkeypatch):
    monkeypatch.setattr(Curriculum, "is_done", property(lambda self: self.accuracy[1] >= 0))
    trained = train_recall(LanguageModelConfig.from_dict({**SMALL, "n_slots": 1}), TINY, "recurrent")
    assert trained.steps == 0


@pytest.mark.slow
def test_the_whole_experiment_in_small(tmp_path):
    plan = RecallPlan(
        d_model=16, n_layers=1, n_heads=2, head_dim=4,
        recall=TINY, copy=replace(TINY, task="copy", sizes=(2,)),
        pairs=(1, 2), lengths=(2, 3), fillers=(7,), filler_pairs=2, answers=32,
        settings=("softmax", "S4", "S16-128"),
    )  # fmt: skip
    out, figure = tmp_path / "recall.json", tmp_path / "recall.png"
    document = recall.write_recall(out, figure, plan)
    assert json.loads(out.read_text())["rows"] == document["rows"]
    assert figure.read_bytes().startswith(b"\x89PNG")
    # A setting that only changes recall has no row of its own for copying.
    assert [(row["task"], row["setting"]) for row in document["rows"]] == [
        ("recall", "softmax"), ("recall", "S4"), ("recall", "S16-128"), ("copy", "softmax"), ("copy", "S4")
    ]  # fmt: skip
    for row in document["rows"]:
        cells = [(cell["size"], cell["filler"]) for cell in row["scores"]]
        assert cells == ([(1, 0), (2, 0), (2, 7)] if row["task"] == "recall" else [(2, 0), (3, 0)])
        for cell in row["scores"]:
            assert cell["answers"] >= 32 and 0 <= cell["low"] <= cell["accuracy"] <= cell["high"] <= 1
        assert {"parameters", "steps", "commit", "hardware", "seconds", "sizes_trained"} <= set(row)
        assert row["training"]["seed"] == 0 and row["training"]["keys"] == (128 if "128" in row["setting"] else 8)
    states = {row["setting"]: row["state_floats"] for row in document["rows"]}
    assert states["softmax"] is None and states["S4"] == 2 * 4 * (4 * 4 + 1)
    assert sum(line.startswith("| 4 slots |") for line in tables_of("recall", document)) == 2

    again = recall.write_recall(out, None, plan, only=["S4"], task="copy")
    kept = [row for row in again["rows"] if (row["setting"], row["task"]) != ("S4", "copy")]
    assert kept == [row for row in document["rows"] if (row["setting"], row["task"]) != ("S4", "copy")]
    assert len(again["rows"]) == 5


def cell(size, accuracy, filler=0):
    return {"size": size, "filler": filler, "accuracy": accuracy}


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [((1.0, 0.995, 0.9), 8), ((0.98, 1.0, 1.0), 0), ((1.0, 0.9, 1.0), 4), ((1.0, 1.0, 0.99), 16)],
)
def test_capacity_ends_before_the_first_size_that_is_not_held(accuracies, expected):
    cells = [cell(size, accuracy) for size, accuracy in zip((4, 8, 16), accuracies, strict=True)]
    assert capacity([cell(4, 0.1, filler=9), *reversed(cells)]) == expected


def row(setting, task, scores):
    title = next(existing.title for existing in recall.SETTINGS if existing.name == setting)
    return {"setting": setting, "task": task, "title": title, "scores": scores, "capacity": capacity(scores)}


def test_the_bar_reads_sixteen_slots_at_sixteen_pairs():
    other = row("S32", "recall", [cell(16, 1.0)])
    assert [(bar["actual"], bar["met"]) for bar in bars([other])] == [(None, False), (None, False)]
    rows = [other, row("S16", "recall", [cell(16, 0.991), cell(16, 0.5, filler=64)])]
    rows.append(row("S16-joint", "recall", [cell(16, 0.98)]))
    assert [(bar["actual"], bar["met"]) for bar in bars(rows)] == [(0.991, True), (0.98, False)]


def test_rows_keep_the_order_of_the_settings():
    rows = []
    for setting, task in (("S4", "copy"), ("S16", "recall"), ("softmax", "recall")):
        rows = merged(rows, row(setting, task, [cell(4, 1.0)]))
    assert [(item["setting"], item["task"]) for item in rows] == [
        ("softmax", "recall"), ("S16", "recall"), ("S4", "copy")
    ]  # fmt: skip


def test_settings_are_those_that_the_model_knows(monkeypatch):
    unknown = recall.Setting("later", "of a later version", "recurrent", {"no_such_field": 1})
    monkeypatch.setattr(recall, "SETTINGS", (*recall.SETTINGS, unknown))
    assert [setting.name for setting in available(["S1", "later"])] == ["S1"]
    with pytest.raises(ValueError, match="setting must be one of softmax"):
        available(["S5"])
    for setting in available(RecallPlan().settings):
        assert setting.mode in model_config(RecallPlan(), setting).modes
