"""Recall and copying: the sequences against a dictionary, the scores against oracles."""

from types import SimpleNamespace

import pytest
import torch

from rfa.benchmarks.language.recall.state_tracking import MODELS, measure
from rfa.benchmarks.language.recall.table import (
    capacity,
    right_answers,
    score,
)
from rfa.benchmarks.language.recall.tasks import (
    CHANCE,
    FIRST_KEY,
    FIRST_VALUE,
    GENERATORS,
    MARKER,
    N_KEYS,
    N_VALUES,
    NO_ANSWER,
    VOCABULARY,
    Curriculum,
    RecallConfig,
    copy_batch,
    multiplication_table,
    recall_batch,
    word_batch,
)


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


@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_copy_repeats_its_string(length):
    batch = copy_batch(1, 2, 10, length)
    for row, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        string = row[:length]
        assert row == [*string, MARKER, *string[:-1]]
        assert targets == [NO_ANSWER] * length + string
        assert all(FIRST_KEY <= symbol < FIRST_KEY + N_KEYS for symbol in string)


@pytest.mark.parametrize(("group", "size"), [("A5", 60), ("S5", 120)])
def test_a_word_has_the_products_of_its_beginnings(group, size):
    table = torch.from_numpy(multiplication_table(group))
    everything = torch.arange(size)
    assert torch.equal(table[0], everything) and torch.equal(table[:, 0], everything)
    assert all(torch.equal(row.sort().values, everything) for row in (*table, *table.T))
    # (a b) c = a (b c)
    assert torch.equal(table[table][:, :, everything], table[everything][:, table])
    assert not torch.equal(table, table.T)
    batch = word_batch(group, 0, 0, 8, 12)
    generators = batch.tokens.unique()
    reached = {0}
    while (larger := reached | set(table[list(reached)][:, generators].flatten().tolist())) != reached:
        reached = larger
    assert len(generators) == len(GENERATORS[group]) and len(reached) == size
    products = batch.tokens[:, 0]
    for i in range(12):
        products = products if i == 0 else table[products, batch.tokens[:, i]]
        assert torch.equal(batch.targets[:, i], products)
    assert not torch.equal(batch.tokens, word_batch(group, 0, 0, 8, 12, split="test").tokens)


@pytest.mark.slow
def test_state_tracking_is_measured_in_small(tmp_path):
    document = measure(["A5"], [0], tmp_path / "found.json", steps=2)
    assert [row["model"] for row in document["rows"]] == list(MODELS)
    assert all(0 <= value <= 1 for row in document["rows"] for value in row["accuracy"].values())
    assert measure(["A5"], [1], tmp_path / "found.json", steps=2)["rows"] == document["rows"]


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


def cell(size, accuracy, filler=0):
    return {"size": size, "filler": filler, "accuracy": accuracy}


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [((1.0, 0.995, 0.9), 8), ((0.98, 1.0, 1.0), 0), ((1.0, 0.9, 1.0), 4), ((1.0, 1.0, 0.99), 16)],
)
def test_capacity_ends_before_the_first_size_that_is_not_held(accuracies, expected):
    cells = [cell(size, accuracy) for size, accuracy in zip((4, 8, 16), accuracies, strict=True)]
    assert capacity([cell(4, 0.1, filler=9), *reversed(cells)]) == expected
