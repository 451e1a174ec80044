"""Prompts in pieces: the tokens of the whole, and no work for tokens that nobody wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rfa.runtime.text.cuts import check_splitting
from rfa.runtime.text.incremental import Vocabulary
from rfa.service.engine.text import prompt
from rfa.service.engine.text.prompt import LONGEST_PIECE, USUAL_PIECE, PromptReader
from rfa.service.errors import InvalidRequest
from tests.service.conftest import Connect
from tests.service.models import FakeLanguage, byte_vocabulary, fake_models

BOOKS = Vocabulary((Path(__file__).parents[2] / "bundles" / "books" / "tokenizer.json").read_text(encoding="utf-8"))
MERGED = byte_vocabulary(merges=[("a", "b"), ("ab", "c"), ("'", "l"), ("1", "1"), ("!", "!"), ("Ġ", "Ġ"), ("Ċ", "Ċ")])
FRAGMENTS = (
    " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\x1c", "\x85", "\u200b", "\u180e",
    "'s", "'ll", "'", "''", "don't", "I've", "'D", "aaaa'lll", "aaaaa'sssss", "llll'llllll",
    "the", " a", "abcabc", "zqxj", "qqqqqqq", "1", "12345678", "²", "９９", "𝟘𝟙𝟚𝟛𝟜𝟝", "!", "!!!???", "—",
    "漢字漢字漢字", "ЖЖЖЖЖЖ", "ǅ", "é", "e\u0301", "\u0301" * 6, "😀" * 7, "👩\u200d👩\u200d👧", "\U0001fbf0\U0001fbf1",
    "<|endoftext|>", "<|endof", "text|>", "|>", " " * 9, " \n \n \n ", "\n" * 7,
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=25).map("".join)


def read(vocabulary: Vocabulary, text: str, most: int = 10**9) -> PromptReader:
    reader = PromptReader(vocabulary, text, most)
    while not reader.is_done:
        reader.read()
    return reader


@given(TEXTS, st.sampled_from([1, 2, 3, 5, 8, 20]), st.sampled_from([1, 3, 10**9]), st.booleans())
def test_pieces_have_the_tokens_of_the_whole(text: str, usual: int, most: int, is_merged: bool) -> None:
    vocabulary = MERGED if is_merged else BOOKS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt, "USUAL_PIECE", usual)
        patch.setattr(prompt, "LONGEST_PIECE", 10**9)
        assert read(vocabulary, text, most).tokens == vocabulary.encode(text)[-most:]


@pytest.mark.parametrize("text", ["word " * 9, "q" * 40, "漢" * 40, "\U0001f600" * 40, "1" * 40, "\n" * 40, "?" * 40])
def test_there_are_places_to_cut(text: str) -> None:
    """Else the law above would hold for want of pieces."""
    places = [place for place in range(1, len(text)) if BOOKS.cuts.first(text, place, place + 1)]
    assert len(places) >= (8 if " " in text else 30)


class Counting:
    """A vocabulary that notes how long the texts are that it encodes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.lengths: list[int] = []
        self.cuts = vocabulary.cuts
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self._vocabulary)

    def encode(self, text: str) -> list[int]:
        self.lengths.append(len(text))
        return self._vocabulary.encode(text)


LONG = {
    "words": "It was the best of times. " * 80_000,
    "one letter": "q" * 1_900_000,
    "signs": "?" * 1_900_000,
    "line breaks": "\n" * 1_900_000,
    "emoji": "\U0001f600" * 470_000,
    "Chinese": "\u6f22\u5b57" * 300_000,
    "digits": "4711" * 400_000,
}


@pytest.mark.parametrize("case", LONG)
def test_no_piece_is_long_and_none_is_read_in_vain(case: str) -> None:
    counting: Any = Counting(BOOKS)
    reader = read(counting, LONG[case], 5_000)
    assert len(reader.tokens) == 5_000
    assert max(counting.lengths) <= USUAL_PIECE
    assert sum(counting.lengths) <= 5_000 * BOOKS.longest_token + USUAL_PIECE
    assert reader.tokens == BOOKS.encode(LONG[case][-sum(counting.lengths) :])[-5_000:]


@pytest.mark.parametrize("word", [" ", "the"])
def test_a_word_without_a_place_to_cut_is_read_whole_or_refused(word: str) -> None:
    vocabulary = byte_vocabulary(merges=[("Ġ", "Ġ"), ("t", "h"), ("th", "e"), ("e", "t")])
    longest = word * (LONGEST_PIECE // len(word))
    assert read(vocabulary, longest).tokens == vocabulary.encode(longest)
    with pytest.raises(InvalidRequest) as refused:
        read(vocabulary, longest + word)
    assert (refused.value.param, refused.value.code) == ("inputs", "word_too_long")


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
        {"pre_tokenizer": None},
        {"added_tokens": [{"id": 0, "content": "<|endoftext|>", "lstrip": True}]},
    ],
)
def test_a_tokenizer_that_splits_otherwise_is_refused(books_bundle: Path, change: dict[str, Any]) -> None:
    document = json.loads((books_bundle / "tokenizer.json").read_text(encoding="utf-8"))
    check_splitting(document)
    with pytest.raises(ValueError, match="GPT-2"):
        check_splitting({**document, **change})


@pytest.mark.anyio
@pytest.mark.parametrize("truncate", [None, 41])
async def test_a_prompt_too_long_by_its_bytes_is_never_tokenised(connect: Connect, truncate: int | None) -> None:
    model = FakeLanguage()
    model.vocabulary = counting = Counting(model.vocabulary)  # type: ignore[assignment]
    counting.longest_token = 13  # type: ignore[attr-defined]
    async with connect(fake_models(model), max_prompt_tokens=40) as client:
        body = {"inputs": "x" * (40 * 13 + 1), "parameters": {"truncate": truncate}}
        reply = await client.post("/generate", json=body)
        tokens = await client.post("/v1/completions", json={"prompt": [1] * 41, "truncate_prompt_tokens": truncate})
    for refused, param in ((reply, "inputs"), (tokens, "prompt")):
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (422, param, "prompt_too_long")
    assert not counting.lengths
