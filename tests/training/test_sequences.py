"""Sequences of whole numbers as a corpus: a token an event, ends between sequences, and what is no event."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rfa.runtime.text.incremental import Vocabulary
from rfa.training.corpus import END_OF_TEXT, encode_files, train_tokenizer
from rfa.training.sequences import are_sequences, event_tokenizer, lines_of


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_an_event_is_a_token_and_a_line_a_sequence(tmp_path: Path) -> None:
    file = written(tmp_path, "a.txt", "5 5, 226\n\n9;22 5\n")
    tokenizer = train_tokenizer([file], 999)
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokens = encode_files(tokenizer, [file])
    five, nine, many = (tokenizer.token_to_id(f"Ġ{number}") for number in (5, 9, 226))
    assert tokens.tolist() == [end, five, five, many, end, nine, tokenizer.token_to_id("Ġ22"), five, end]
    assert tokenizer.get_vocab_size() == 1 + 256 + len({"5", "9", "2", "22", "226"})
    assert tokens.dtype == np.uint16 and tokenizer.decode(tokens.tolist()) == " 5 5 226 9 22 5"


def test_numbers_that_training_did_not_have_stay_what_they_are(tmp_path: Path) -> None:
    tokenizer = event_tokenizer([written(tmp_path, "a.txt", "1 12 3")])
    vocabulary = Vocabulary(tokenizer.to_str())
    for number in (12, 13, 123, 4, 99):
        tokens = vocabulary.encode(f" {number}")
        assert vocabulary.decode(tokens) == f" {number}" and (len(tokens) == 1) == (number == 12)
    assert vocabulary.decode(vocabulary.encode(" new é")) == " new é"


@pytest.mark.parametrize(
    ("text", "expected"), [("1 2\n3", True), ("1 2 x", False), (" \n", False), ("-1 2", False), ("1.5", False)]
)
def test_files_of_numbers_only_are_sequences(text: str, expected: bool, tmp_path: Path) -> None:
    assert are_sequences([written(tmp_path, "a.txt", text)]) is expected
    assert not are_sequences([written(tmp_path, "a.txt", text), written(tmp_path, "b.txt", "words")])


def test_a_number_that_is_too_long_names_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, "a.txt", "1\n2 1234567890\n")
    with pytest.raises(ValueError, match=r"a\.txt, line 2: '1234567890' is not an event"):
        list(lines_of(file))
