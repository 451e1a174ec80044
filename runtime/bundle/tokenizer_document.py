"""Schema of tokenizer.json and tokenizer_config.json, restricted to byte-level BPE.

Custom normalisers, patterns and templates are rejected, because they can be arbitrarily slow. Dropout is rejected,
because it is random. The vocabulary must have exactly the ids of the model, and each token must be a sequence of bytes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rfa.runtime.bundle.documents import BundleError, Strict, json_object, read_document

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
MAX_TOKENS = 1 << 20
MAX_TOKEN = 1_024
Token = Annotated[str, Field(min_length=1, max_length=MAX_TOKEN)]
Id = Annotated[int, Field(ge=0, lt=MAX_TOKENS)]


def byte_of_character() -> dict[str, int]:
    """Return the byte that each printable character represents. This is the inverse of `bytes_to_unicode` of GPT-2."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


class AddedToken(Strict):
    """A token that is matched literally in a text."""

    id: Id
    content: Token
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


class ByteLevel(Strict):
    """Component of a tokenizer that converts bytes to printable characters."""

    type: Literal["ByteLevel"]
    add_prefix_space: bool
    trim_offsets: bool
    use_regex: bool


class Bpe(Strict):
    """Model of a byte-level BPE tokenizer, which consists of a vocabulary and an ordered list of merges."""

    type: Literal["BPE"]
    dropout: None
    unk_token: None
    continuing_subword_prefix: None
    end_of_word_suffix: None
    fuse_unk: Literal[False]
    byte_fallback: Literal[False]
    ignore_merges: bool
    vocab: Annotated[dict[Token, Id], Field(min_length=1, max_length=MAX_TOKENS)]
    merges: Annotated[list[tuple[str, str]], Field(max_length=MAX_TOKENS)]

    @field_validator("merges", mode="before")
    @classmethod
    def _pairs(cls, merges: object) -> object:
        """Split pairs of tokens that are stored as two words in one string."""
        if not isinstance(merges, list):
            return merges
        split = (pair.split(" ") if isinstance(pair, str) else pair for pair in merges)
        return [tuple(pair) if isinstance(pair, list) else pair for pair in split]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if any(not {one, two, one + two} <= self.vocab.keys() for one, two in self.merges):
            raise ValueError("each merge must join two tokens into another token")
        return self

    @property
    def reachable(self) -> set[str]:
        """Tokens that can occur, which are single bytes and the results of merges."""
        return {one + two for one, two in self.merges} | set(byte_of_character())


class TokenizerDocument(Strict):
    """Content of tokenizer.json."""

    version: Literal["1.0"]
    truncation: None
    padding: None
    added_tokens: Annotated[list[AddedToken], Field(max_length=1_024)]
    normalizer: None
    pre_tokenizer: ByteLevel
    post_processor: None
    decoder: ByteLevel
    model: Bpe

    @model_validator(mode="after")
    def _ids_are_whole(self) -> Self:
        ids = dict(self.model.vocab)
        for token in self.added_tokens:
            if ids.setdefault(token.content, token.id) != token.id:
                raise ValueError(f"added token {token.content[:40]!r} must not have two ids")
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError("the ids must be 0, 1, 2 and so on, without gaps or repetitions")
        added, characters = {token.content for token in self.added_tokens}, set(byte_of_character())
        if len(added) != len(self.added_tokens) or any(not set(token) <= characters for token in ids.keys() - added):
            raise ValueError("tokens must consist of byte characters, and added tokens must be unique")
        if ids.keys() - added - self.model.reachable:
            raise ValueError("each token must be a byte, an added token or the result of a merge")
        return self


class TokenizerConfig(Strict):
    """Content of tokenizer_config.json, which transformers reads."""

    tokenizer_class: Literal["PreTrainedTokenizerFast"]
    model_max_length: Annotated[int, Field(ge=1, le=10**31)]
    clean_up_tokenization_spaces: Literal[False]
    bos_token: Token | None = None
    eos_token: Token | None = None


def check_tokenizer(data: bytes, config: bytes, vocab_size: int) -> None:
    """Check that tokenizer.json and tokenizer_config.json define a supported byte-level BPE for the vocabulary of the
    model.

    Args:
        data: Content of tokenizer.json.
        config: Content of tokenizer_config.json.
        vocab_size: Vocabulary size of the model.

    Raises:
        BundleError: If a file is invalid. The message names the file and the reason.
    """
    document = read_document(TokenizerDocument, json_object(data, TOKENIZER_FILE), TOKENIZER_FILE)
    tokens = {*document.model.vocab, *(token.content for token in document.added_tokens)}
    if len(tokens) != vocab_size:
        raise BundleError(f"{TOKENIZER_FILE}: the file has {len(tokens)} tokens, but the model has {vocab_size}")
    special: set[Any] = {token.content for token in document.added_tokens if token.special}
    found = read_document(TokenizerConfig, json_object(config, TOKENIZER_CONFIG_FILE), TOKENIZER_CONFIG_FILE)
    if not {found.bos_token, found.eos_token} - {None} <= special:
        raise BundleError(
            f"{TOKENIZER_CONFIG_FILE}: bos_token and eos_token must be special tokens of {TOKENIZER_FILE}"
        )
