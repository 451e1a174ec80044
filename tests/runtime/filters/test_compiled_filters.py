"""The compiled filters of the service: held to golden outputs, and compiled before they serve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters import graph_steps
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.interface import Piece, Row
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from tests.runtime.loading import load_filter

BUNDLES = Path(__file__).parents[3] / "bundles"


def test_a_compiled_filter_is_held_to_the_golden_outputs(tmp_path: Path) -> None:
    bundle = open_bundle(BUNDLES / "linear")
    assert load_filter(bundle).runtime == "compiled"
    case = next(case for case in bundle.golden["cases"] if case["graph"] == "step")
    case["outputs"]["mean"]["values"][0] += 0.01
    with pytest.raises(ValueError, match=r"golden.json, in compiled code: case \d+, step.mean differs"):
        load_filter(bundle)


@pytest.mark.parametrize("name", ["linear", "oscillator"])
def test_a_loaded_filter_compiles_no_more(name: str) -> None:
    """Live rounds of one and of many, with and without forecasts and samples, series in arrays of any layout, and
    attention: all that was compiled at the load. Other types are an error, in whose place a request had to wait."""
    model = load_filter(open_bundle(BUNDLES / name))
    size = model.observation_size
    pool = StatePool(model.state_fields, 3)
    slots = [pool.acquire() for _ in range(3)]
    for slot in slots:
        model.put(pool, slot, model.start())
    plain, full = model.readout((0.9,), (), 0), model.readout((0.5, 0.9), (1.0, 2.0), 2)
    for t, readouts in enumerate([[plain], [plain] * 3, [plain, full, full]]):
        rows = [Row(slots[i], float(t), [0.1] * size, 1.0, readout, i) for i, readout in enumerate(readouts)]
        assert None not in model.advance(pool, rows)
    values = np.asfortranarray(np.ones((4, size)))[::2]
    times = np.arange(4.0)[::2]
    for array in (values, times):
        array.flags.writeable = False
    assert len(model.follow(pool, Piece(slots[0], 3.0 + times, values, np.ones(2), full, 0))) == 2
    if "attention" not in model.modes:
        return
    assert len(model.filter([0.0, 1.0], [[0.1] * size] * 2, mode="attention").steps) == 2
    with pytest.raises(TypeError, match="No matching definition"):
        out = StepOutputs.allocate(1, size, plain)
        graph_steps._score_kernel()((), (), (), out, np.ones(1, bool), np.zeros(1, np.int64), out)
