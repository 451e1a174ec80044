"""Incremental text against decoding everything at once, and stop sequences against searching the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from rfa.runtime.text.incremental import TextStream, Vocabulary
from tests.service.models import END_OF_TEXT, byte_vocabulary

VOCABULARY = byte_vocabulary(merges=[("a", "b"), ("ab", "c"), ("Ã", "©"), ("Ġ", "a")])


def stream_text(tokens: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    stream, pieces = TextStream(VOCABULARY, stops), []
    for token in tokens:
        pieces.append(stream.push(token))
        if stream.stopped:
            break
    return [*pieces, stream.flush()], stream.stopped


# The end of a text is a token, and no text.
@given(st.text(max_size=40).filter(lambda text: END_OF_TEXT not in text))
def test_pieces_join_to_the_text(text: str) -> None:
    tokens = VOCABULARY.encode(text)
    pieces, _ = stream_text(tokens)
    assert "".join(pieces) == text


@given(st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=30))
def test_any_tokens_equal_the_tokenizers_own_decoding(tokens: list[int]) -> None:
    # Without an incomplete character at the end, which the stream drops and the tokenizer replaces.
    tokens = [*tokens, *VOCABULARY.encode("!")]
    pieces, _ = stream_text(tokens)
    assert "".join(pieces) == VOCABULARY._tokenizer.decode(tokens, skip_special_tokens=True)


def test_a_character_is_released_whole() -> None:
    tokens = [
        index
        for byte in "€é".encode()
        for index in range(len(VOCABULARY))
        if VOCABULARY.bytes_of(index) == bytes([byte])
    ]
    pieces, _ = stream_text(tokens)
    assert pieces == ["", "", "€", "", "é", ""]


@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_text_ends_before_the_stop_that_is_complete_first(text: str, stops: list[str]) -> None:
    ends = [(end, end - len(stop)) for stop in stops for end in range(len(text) + 1) if text[:end].endswith(stop)]
    expected = text[: min(ends)[1]] if ends else text
    pieces, stopped = stream_text(VOCABULARY.encode(text), tuple(stops))
    assert ("".join(pieces), stopped) == (expected, bool(ends))


def test_a_possible_stop_is_held_back_and_released_when_it_is_none() -> None:
    tokens = [VOCABULARY.encode(letter)[0] for letter in "xaay"]
    stream = TextStream(VOCABULARY, ("aab",))
    assert [stream.push(token) for token in tokens] == ["x", "", "", "aay"]


@given(
    st.text(alphabet="aé€", max_size=20),
    st.lists(st.text(alphabet="aé", min_size=1, max_size=4), max_size=2),
    st.data(),
)
def test_text_in_two_requests_is_the_text_of_one(text: str, stops: list[str], data: st.DataObject) -> None:
    tokens = VOCABULARY.encode(text)
    cut = data.draw(st.integers(0, len(tokens)))
    whole, stopped = stream_text(tokens, tuple(stops))
    first = TextStream(VOCABULARY, tuple(stops))
    given_out = "".join(first.push(token) for token in tokens[:cut] if not first.stopped)
    if first.stopped:
        return
    undecoded, tail = first.undecoded, first.held
    given_out += first.flush()
    second = TextStream(VOCABULARY, tuple(stops), undecoded, tail)
    given_out += "".join(second.push(token) for token in tokens[cut:] if not second.stopped) + second.flush()
    assert second.stopped == stopped
    # What had to be given out at the cut may be the beginning of a stop sequence; apart from that it is the same text.
    text = "".join(whole)
    assert given_out == text or (stopped and given_out[len(text) :] in tail and given_out.startswith(text))


def test_special_tokens_have_no_text() -> None:
    assert VOCABULARY.end_of_text is not None
    assert VOCABULARY.is_special(VOCABULARY.end_of_text)
    assert TextStream(VOCABULARY).push(VOCABULARY.end_of_text) == ""
    assert VOCABULARY.label(VOCABULARY.end_of_text) == "<|endoftext|>"


def test_a_tokenizer_that_is_not_byte_level_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.decoder = decoders.Metaspace()
    with pytest.raises(ValueError, match="ByteLevel"):
        Vocabulary(tokenizer.to_str())
