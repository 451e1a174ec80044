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


def test_unigram_approaches_the_entropy_of_its_source():
    probability = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
    generator = np.random.default_rng(3)
    train, test = (generator.choice(5, 200_000, p=probability) for _ in range(2))
    nats, bits = unigram(train, test, 5, 3 * len(test))
    entropy_bits = float(-(probability * np.log2(probability)).sum())
    assert nats / math.log(2) == pytest.approx(entropy_bits, rel=5e-3)
    assert bits == pytest.approx(entropy_bits / 3, rel=5e-3)


def test_unigram_without_training_is_uniform():
    nats, bits = unigram(np.array([], np.int64), np.array([0, 3, 3]), 8, 6)
    assert nats == pytest.approx(math.log(8))
    assert bits == pytest.approx(3 * 3 / 6)


def test_unigram_is_finite_on_tokens_it_never_saw():
    nats, _ = unigram(np.zeros(998, np.uint16), np.array([1], np.uint16), 2, 1)
    assert nats == pytest.approx(math.log(1000))


def test_unigram_does_not_learn_from_the_test():
    train, test = np.array([0, 0, 1]), np.array([1, 1, 1, 1])
    assert unigram(train, test, 2, 4)[0] == pytest.approx(unigram(train, test[:1], 2, 1)[0])


@pytest.mark.parametrize(
    ("train", "test", "size", "message"),
    [
        ([0], [], 1, "test text is empty: 0 tokens"),
        ([0], [1], 0, "test text is empty: 1 tokens, 0 bytes"),
        ([0, 4], [1], 1, r"train ids must be in \[0, 4\), got 0 to 4"),
        ([0], [1, -1], 1, r"test ids must be in \[0, 4\), got -1 to 1"),
    ],
)
def test_unigram_refuses_ids_that_cannot_be(train, test, size, message):
    with pytest.raises(ValueError, match=message):
        unigram(np.array(train, np.int64), np.array(test, np.int64), 4, size)


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


def test_the_window_of_xz_is_that_of_its_preset():
    """64 MiB is in the header of what we write, not only in our table."""
    packed = lzma.compress(b"x", preset=9 | lzma.PRESET_EXTREME)
    # xz stream header 12 bytes, block header: size, flags, filter id 0x21, property size 1, dictionary size.
    assert packed[14:16] == b"\x21\x01"
    code = packed[16]
    assert (2 | (code & 1)) << (code // 2 + 11) == WINDOWS["xz"]
