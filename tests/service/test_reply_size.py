"""The memory that replies are estimated at, against what they really take."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.interface import Row
from rfa.service.encoding import PIECE_NUMBERS, Long, dumps, pieces
from rfa.service.engine.reply_size import StepShape, _body_bytes, generation_bytes, smoothing_bytes
from rfa.service.engine.text.generated import TokenEvent, TopTokens
from rfa.service.schemas.text_replies import Token
from tests.runtime.loading import load_filter
from tests.service.models import byte_vocabulary

LEVELS = tuple(round(0.05 + 0.055 * i, 4) + 1e-12 for i in range(16))
HORIZON = tuple(0.1 * (i + 1) for i in range(256))
STEPS = 8
WARM = 6
# The ends, and a shape with everything; between them nothing is computed otherwise.
SHAPES = [
    (0, 1, 0),
    (256, 16, 0),
    (0, 2, 1024),
    *(pytest.param(*shape, marks=pytest.mark.slow) for shape in ((0, 16, 0), (3, 2, 0), (15, 16, 0), (16, 1, 0))),
    (256, 2, 64),
]


def taken(make: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes that are held by what `make` returns."""
    tracemalloc.start()
    try:
        # Caches are filled, those of freed arrays and objects too: with memory that is counted already.
        for _ in range(WARM):
            make()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before, made
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module", params=["oscillator", "linear"])
def runtime(request: Any, bundles: Path) -> FilterRuntime:
    return load_filter(open_bundle(bundles / request.param))


def wide(runtime: FilterRuntime, count: int) -> list[list[float]]:
    """Observations whose numbers have as many digits as there are."""
    size = runtime.observation_size
    return (np.random.default_rng(0).standard_normal((count, size)) * 1.2345678901234567e-7).tolist()


@pytest.mark.parametrize(("horizon", "levels", "samples"), SHAPES)
def test_a_step_takes_no_more_than_its_estimate(
    runtime: FilterRuntime, horizon: int, levels: int, samples: int
) -> None:
    readout = runtime.readout(LEVELS[:levels], HORIZON[:horizon], samples)
    shape = StepShape(runtime.observation_size, levels, horizon, samples)
    pool = StatePool(runtime.state_fields, 8)
    slots = [pool.acquire() for _ in range(8)]
    for slot in slots:
        runtime.put(pool, slot, runtime.start())

    def advance() -> list[Any]:
        # Eight streams share each step, and one of them is slow: what it holds must not hold the others' numbers.
        rows = [[Row(slot, 1e-7 * i, y, 1.0, readout, 1) for slot in slots] for i, y in enumerate(wide(runtime, STEPS))]
        return [runtime.advance(pool, step)[0].step for step in rows]

    held, steps = taken(advance)
    assert held <= STEPS * shape.held_bytes <= 4 * held
    encoded = sum(len(dumps(step)) for step in steps)
    assert encoded <= STEPS * shape.json_bytes <= 3 * encoded


@pytest.mark.parametrize(("horizon", "levels", "samples"), SHAPES)
def test_a_smoothed_sequence_takes_no_more_than_its_estimate(
    runtime: FilterRuntime, horizon: int, levels: int, samples: int
) -> None:
    shape = StepShape(runtime.observation_size, levels, horizon, samples)
    times = [0.1 * i for i in range(STEPS)]

    def smooth() -> list[Any]:
        return [
            runtime.filter(
                times, wide(runtime, STEPS), levels=LEVELS[:levels], horizon=HORIZON[:horizon], samples=samples,
                smooth=True,
            )
        ]  # fmt: skip

    smooth()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        smooth()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    # The work of a step, its pool and its graph's outputs are the worker's, once.
    spare = 400_000 + 8 * shape.held_bytes
    assert peak - spare <= smoothing_bytes(shape, STEPS, runtime.state_size, is_streamed=True)


@pytest.mark.parametrize(
    ("top", "latent"),
    [(0, 0), (32, 256), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((5, 0), (32, 0), (0, 256)))],
)
def test_tokens_take_no_more_than_their_estimate(top: int, latent: int) -> None:
    vocabulary, count = byte_vocabulary(), 2_000

    def make() -> list[TokenEvent]:
        return [
            TokenEvent(
                1_000 + i, 300 + i % 3, Token(1_000 + i, f"{i:04} wörd", -0.1 * i, False, 1 / (i + 1)),
                TopTokens(np.arange(top), np.full(top, -0.1), vocabulary) if top else None,
                np.zeros((4, latent // 4), np.float32) if latent else None,
            )
            for i in range(count)
        ]  # fmt: skip

    held, events = taken(make)
    estimate = generation_bytes(count, top, latent, None) - _body_bytes(1 << 40, is_streamed=False)
    assert held <= estimate <= 3 * held
    assert len(dumps(events)) > 0


def test_pieces_are_the_bytes_of_the_whole() -> None:
    array = np.random.default_rng(0).standard_normal((3_000, 2))

    def document(long: Callable[[list[Any], Callable[[Any], Any], int], Any], rows: Callable[[np.ndarray], Any]) -> Any:
        def inner(i: int) -> dict[str, Any]:
            return {"i": i, "x": long(list(range(600 * (i % 7))), lambda x: x / 7, 1), "a": rows(array[:i])}

        return {
            "none": long([], inner, 1), "text": 'a\0b"\u2028', "many": long(list(range(40)), inner, 30),
            "array": rows(array), "scalars": [np.float64(1.5), np.int64(3)], "after": None,
        }  # fmt: skip

    made = list(pieces(document(Long, lambda rows: rows)))
    plain = document(lambda things, make, _: [make(thing) for thing in things], lambda rows: rows.tolist())
    plain["scalars"] = [1.5, 3]
    assert b"".join(made) == orjson.dumps(plain)
    assert len(made) > 100 and max(map(len, made)) < 64 * PIECE_NUMBERS
    with pytest.raises(TypeError):
        dumps({"x": object()})
