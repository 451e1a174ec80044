"""Finds text that two books share, by hashes of shingles of 50 characters."""

from __future__ import annotations

import re

import numpy as np

SHINGLE = 50
# One in SAMPLED shingles is compared, chosen by its hash, so that equal shingles are chosen in every book.
SAMPLED = 64
MULTIPLIER = 0x9E3779B97F4A7C15
MIXER = np.uint64(0xD6E8FEB86659FD93)
LETTERS = re.compile(r"[^a-z0-9]+")


def shingles(text: str) -> set[int]:
    """Return the hashes of the sampled shingles of a text, without case, punctuation and line ends."""
    letters = np.frombuffer(LETTERS.sub(" ", text.lower()).encode("ascii"), np.uint8).astype(np.uint64)
    if len(letters) < SHINGLE:
        return set()
    hashes = _polynomials(letters, SHINGLE)
    hashes = (hashes ^ (hashes >> np.uint64(32))) * MIXER
    hashes ^= hashes >> np.uint64(29)
    return set(hashes[hashes % np.uint64(SAMPLED) == 0].tolist())


def _polynomials(letters: np.ndarray, length: int) -> np.ndarray:
    """Return the polynomials modulo 2^64 of all windows of a length, from those of halves of it."""
    if length == 1:
        return letters
    half = length // 2
    parts = _polynomials(letters, half)
    doubled = parts[: len(parts) - half] * np.uint64(pow(MULTIPLIER, half, 1 << 64)) + parts[half:]
    return doubled if length % 2 == 0 else doubled[:-1] * np.uint64(MULTIPLIER) + letters[length - 1 :]
