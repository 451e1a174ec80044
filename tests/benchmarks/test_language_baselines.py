"""The baselines of the language table, on texts whose entropy is known."""

import gzip
import lzma
import math

import numpy as np
import pytest

from rfa.benchmarks.language.baselines import WINDOWS, compressor_bits_per_byte, unigram


def noise(seed: int, size: int) -> bytes:
    """Bytes that nothing can compress."""
    return np.random.default_rng(seed).bytes(size)


@pytest.mark.parametrize(("name", "unpack"), [("gzip", gzip.decompress), ("xz", lzma.decompress)])
def test_the_compressed_text_holds_the_text(name, unpack, monkeypatch):
    """The figure is the size of something from which the text comes back."""
    from rfa.benchmarks.language import baselines

    packed = []
    real = baselines._compressed
    monkeypatch.setattr(baselines, "_compressed", lambda *args: packed.append(real(*args)) or packed[-1])
    text = b"call me ishmael. " * 40 + noise(0, 100)
    assert compressor_bits_per_byte(text, name) == 8 * len(packed[0]) / len(text)
    assert len(packed) == 1 and unpack(packed[0]) == text


@pytest.mark.parametrize("name", ["gzip", "xz"])
def test_a_text_that_was_read_before_is_almost_free(name):
    text = noise(1, 20_000)
    assert compressor_bits_per_byte(text, name) > 8
    assert compressor_bits_per_byte(text, name, prefix=text) < 0.2
    # Another text is no help, and its own size is not charged.
    assert compressor_bits_per_byte(text, name, prefix=noise(2, 20_000)) == pytest.approx(8, rel=0.01)


def test_only_the_window_of_the_prefix_is_kept(monkeypatch):
    """What gzip read more than 32 KiB ago is forgotten; xz still knows it, until its own window ends."""
    text, since = noise(3, 10_000), noise(4, 40_000)
    assert compressor_bits_per_byte(text, "gzip", prefix=text + since) > 7.9
    assert compressor_bits_per_byte(text, "xz", prefix=text + since) < 1
    monkeypatch.setitem(WINDOWS, "xz", 40_000)
    assert compressor_bits_per_byte(text, "xz", prefix=text + since) > 7.9


def test_unigram_of_a_given_source():
    train = np.array([0] * 79 + [1] * 19)  # add-one: 80 % and 20 %
    nats, bits = unigram(train, np.array([0, 0, 0, 0, 1]), 2, 10)
    expected = -(4 * math.log(0.8) + math.log(0.2))
    assert nats == pytest.approx(expected / 5)
    assert bits == pytest.approx(expected / math.log(2) / 10)
