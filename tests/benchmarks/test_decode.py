"""The decode benchmark on the default bundle: its check can fail, and a cached stream continues the prompt."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rfa.benchmarks.language import decode
from rfa.runtime.bundle.bundle import open_bundle

BOOKS = Path(__file__).parents[2] / "bundles" / "books"


def test_a_position_that_changes_the_model_is_caught():
    stream = decode.start_recurrent(open_bundle(BOOKS))
    far = stream.copy()
    far.position = 100_000
    assert decode.check_position_independence(stream, far) <= 1e-3

    class Drifting:
        def run(self, names, feeds):
            outputs = stream.session.run(names, feeds)
            outputs[0] = outputs[0] + 1e-6 * feeds["position"][0] * np.arange(outputs[0].shape[1])
            return outputs

    stream_with_drift = dataclasses.replace(stream, session=Drifting())
    with pytest.raises(AssertionError, match="differ by"):
        decode.check_position_independence(stream_with_drift, far)


def test_a_cached_stream_continues_the_prompt():
    """Filled in pieces, the cache gives what one prompt pass gives."""
    bundle = open_bundle(BOOKS)
    stream = decode.start_cached(bundle, 300)
    ids = np.random.default_rng(0).integers(1, bundle.config["vocab_size"], (1, 299))
    empty = np.zeros_like(stream.keys[:, :, :, :1])
    (expected,) = bundle.session("attention").run(
        ["logits"],
        {
            "tokens": np.append(ids, [[1]], 1),
            "position": np.array([0]),
            "keys": empty,
            "values": empty,
            "noise": stream.noise,
        },
    )
    assert stream.advance() == pytest.approx(expected[0], abs=1e-3)
