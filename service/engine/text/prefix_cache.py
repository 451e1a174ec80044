"""Cache of the states of recent prompts. A prompt that starts with the same tokens continues from a cached state.

A state after the first tokens of a prompt depends only on these tokens and on the number of reweighting passes. States
are stored about every `EVERY` tokens, always between two chunks, and at the end of the prompt. The state at the end is
used only for an identical prompt. A prompt is therefore cut into the same chunks with and without the cache, and the
results are identical, bit for bit. The tokens of long texts are stored as well.

Entries of a client, which is identified by its API key, are never used for another client. The most recently used
entries are kept, up to a maximum number of bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np

from rfa.runtime.text.contexts import Context
from rfa.runtime.text.language import Language
from rfa.service.engine.text.options import GenerateOptions

# Number of tokens between two stored states. Processing this many tokens again takes at most 8 ms.
EVERY: Final = 256
# Minimum number of tokens of a prompt, and of characters of a text. Processing shorter ones takes as long as finding
# them in the cache.
SHORTEST_PROMPT: Final = 64
SHORTEST_TEXT: Final = 2_048
ENTRY_BYTES: Final = 400
_TOKEN: Final = np.dtype("<u4")


class EntryCache:
    """Cache of bytes by key. It removes the least recently used entries if the total size exceeds `limit_bytes`. It is
    thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Size of all entries in bytes."""
        return self._size

    def get(self, key: bytes) -> bytes | None:
        """Return an entry, and mark it as the most recently used one. Return None if there is no such entry."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Store an entry, and remove the least recently used entries if necessary. An entry that exceeds the maximum
        size of the cache is not stored."""
        size = len(value) + ENTRY_BYTES
        if size > self._limit:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = value
            self._size += size
            while self._size > self._limit:
                _, dropped = self._entries.popitem(last=False)
                self._size -= len(dropped) + ENTRY_BYTES


@dataclass(frozen=True)
class FoundPrefix:
    """A cached state after the first `tokens` tokens of a prompt."""

    tokens: int
    context: bytes


class PrefixCache:
    """Provides access to the cache entries of one model.

    Args:
        entries: Cache that all models share.
        digest: Digest of the bundle of the model.
    """

    def __init__(self, entries: EntryCache, model: Language, digest: str) -> None:
        self._entries, self._model, self._digest = entries, model, digest.encode()
        self._every = -(-EVERY // model.prefill_tokens) * model.prefill_tokens

    def keys(self, options: GenerateOptions, prompt: Sequence[int]) -> dict[int, bytes]:
        """Return a key for each position in a prompt at which a state may be cached. Positions are numbers of tokens,
        in ascending order."""
        last = len(prompt) - 1
        if last < SHORTEST_PROMPT:
            return {}
        kind = f"state of {options.passes} passes".encode()
        data, digest, found = np.asarray(prompt, _TOKEN).tobytes(), self._hash(kind, options), {}
        for start in range(0, last, self._every):
            end = min(start + self._every, last)
            digest.update(data[start * _TOKEN.itemsize : end * _TOKEN.itemsize])
            found[end] = digest.digest()
        # If the end is also a regular position, the state may be used for longer prompts. Otherwise, it must not be.
        if last % self._every:
            digest.update(b"end")
            found[last] = digest.digest()
        return found

    def find(self, keys: dict[int, bytes]) -> FoundPrefix | None:
        """Return the cached state for the longest start of a prompt, or None if there is none."""
        for tokens, key in reversed(keys.items()):
            context = self._entries.get(key)
            if context is not None:
                return FoundPrefix(tokens, context)
        return None

    def store(self, keys: dict[int, bytes], tokens: int, context: Context) -> None:
        """Store the state after the given number of tokens, if a state may be cached at this position."""
        key = keys.get(tokens)
        if key is not None and self._entries.get(key) is None:
            self._entries.put(key, self._model.pack(context))

    def tokens_of(self, options: GenerateOptions, text: str, most: int) -> list[int] | None:
        """Return the last `most` tokens of a text from the cache, or None if the text is short or not cached."""
        if len(text) < SHORTEST_TEXT:
            return None
        found = self._entries.get(self._text_key(options, text, most))
        return None if found is None else np.frombuffer(found, _TOKEN).tolist()

    def store_tokens(self, options: GenerateOptions, text: str, most: int, tokens: Sequence[int]) -> None:
        """Store the tokens of a long text."""
        if len(text) >= SHORTEST_TEXT:
            self._entries.put(self._text_key(options, text, most), np.asarray(tokens, _TOKEN).tobytes())

    def _text_key(self, options: GenerateOptions, text: str, most: int) -> bytes:
        digest = self._hash(f"text of {most}".encode(), options)
        digest.update(text.encode())
        return digest.digest()

    def _hash(self, kind: bytes, options: GenerateOptions) -> blake2b:
        parts = kind, self._digest, options.tenant.encode()
        return blake2b(b"".join(len(part).to_bytes(4, "little") + part for part in parts), digest_size=16)
