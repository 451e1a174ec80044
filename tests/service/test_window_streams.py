"""A language bundle with a window of exact tokens before its slots, served recurrently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.errors import InvalidInput
from rfa.runtime.text.language import LanguageRuntime
from rfa.runtime.text.loading import load_on_cpu
from rfa.service.bundle_checks.large_inputs import check_large_inputs
from tests.runtime.text.exact import EPS, begun, check_company, crowd, prompt_of, read_on, silence, stepped

pytestmark = pytest.mark.slow  # the bundle takes a minute to export
STREAMS = 6


@pytest.fixture(scope="module")
def bundle(window_bundle: Path) -> Bundle:
    return open_bundle(window_bundle)


@pytest.fixture(scope="module")
def runtime(bundle: Bundle) -> LanguageRuntime:
    made = load_on_cpu(bundle, "auto", 4 * STREAMS, STREAMS)
    assert isinstance(made, LanguageRuntime)
    return made


def test_the_state_has_the_ring(bundle: Bundle, runtime: LanguageRuntime) -> None:
    assert [part.name for part in bundle.manifest.state] == ["means", "precisions", "ring"]
    config = bundle.language
    ring = config.n_layers * 4 * config.n_heads * (4 * config.head_dim + 2 * config.n_slots)
    slots = config.n_layers * config.n_heads * config.n_slots * (4 * config.head_dim + 1)
    assert runtime.context_bytes == 8 + 4 * (ring + slots)
    assert runtime.pool.host_bytes_per_slot >= 4 * (ring + slots)
    check_large_inputs(bundle, {name: bundle.session(name) for name in bundle.manifest.graphs})


@pytest.mark.parametrize("count", range(2, STREAMS + 1))
def test_a_stream_has_the_same_bits_alone_and_among_others(runtime: LanguageRuntime, count: int) -> None:
    """Some of them have seen fewer tokens than the window holds."""
    alone, together = crowd(runtime, count), crowd(runtime, count)
    for token in (3, 4, 5):
        tokens = [token + index for index in range(count)]
        check_company(runtime, alone, together, range(count)[::-1], tokens, silence(runtime, count))
    for context in (*alone, *together):
        context.release()


def test_a_prompt_in_pieces_is_one_token_after_the_other(runtime: LanguageRuntime) -> None:
    """In pieces shorter and longer than the window; each layer rounds sums of some dozen terms."""
    tokens = prompt_of(runtime)[:24]
    pieces, singly = begun(runtime, tokens[:3]), begun(runtime, [])
    for start, stop in ((3, 4), (4, 15), (15, 17)):
        read_on(runtime, pieces, tokens[start:stop]).commit()
    stepped(runtime, singly, tokens[:17])
    for found, expected in zip(
        stepped(runtime, pieces, tokens[17:]), stepped(runtime, singly, tokens[17:]), strict=True
    ):
        for a, b in zip(found, expected, strict=True):
            assert np.abs(a - b).max() <= 64 * EPS * max(1.0, float(np.abs(b).max()))
    for context in (pieces, singly):
        context.release()


def test_a_state_goes_on_bit_for_bit(runtime: LanguageRuntime) -> None:
    tokens = prompt_of(runtime)
    whole = begun(runtime, tokens[:9])
    packed = runtime.pack(whole)
    moved = runtime.unpack(packed)
    assert runtime.pack(moved) == packed
    for a, b in zip(stepped(runtime, whole, [5, 6, 7]), stepped(runtime, moved, [5, 6, 7]), strict=True):
        assert all(one.tobytes() == other.tobytes() for one, other in zip(a, b, strict=True))
    for context in (whole, moved):
        context.release()
    for broken in (packed[:-4], packed[:-4] + b"\x00\x00\xc0\x7f"):
        with pytest.raises(InvalidInput):
            runtime.unpack(broken)


def test_a_poisoned_ring_is_reported(runtime: LanguageRuntime) -> None:
    context = begun(runtime, prompt_of(runtime)[:9])
    state = context.read()
    state["ring"][0, 1, 0, 0] = np.nan
    context.write(state)
    _, (advance,) = runtime.step([context], [3], silence(runtime))
    assert not advance.is_finite()
    context.release()
    assert runtime.pool.in_use == 0
