"""Requests choose their reweighting passes, up to those of the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.linear_config import LinearFilterConfig
from tests.model.oracles import float64_filter
from tests.service.conftest import Live
from tests.service.live import answer, replies_of, serving

ROUNDING = 1e-9  # of float64 over these steps
COUNT = 120
TIMES = np.cumsum(np.random.default_rng(0).exponential(0.1, COUNT))


def observations() -> np.ndarray:
    """Noise with outliers of every size, of which the passes make different things."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(COUNT, 2)) * np.where(rng.random(COUNT) < 0.2, 6.0, 1.0)[:, None]


def expected(bundles: Path, passes: int) -> np.ndarray:
    """Means of the eager model in float64, made with so many passes."""
    config = open_bundle(bundles / "linear").config
    rows = {key: tuple(map(tuple, value)) for key, value in config.items() if isinstance(value, list)}
    model = float64_filter(replace(LinearFilterConfig(**{**config, **rows}), inner=passes))
    y = torch.from_numpy(observations()[None])
    output, _ = model(y, torch.ones_like(y), torch.from_numpy(TIMES[None]))
    return output.mean[0].numpy()


def means(runtime: FilterRuntime, count: int = COUNT, **options: Any) -> np.ndarray:
    sequence = runtime.filter(TIMES[:count].tolist(), observations()[:count].tolist(), levels=(0.9,), **options)
    return np.concatenate([piece.outputs.mean for piece in sequence.pieces])


@pytest.mark.parametrize("passes", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_passes_are_those_of_a_model_made_with_them(passes: int, bundles: Path) -> None:
    runtime = FilterRuntime(open_bundle(bundles / "linear"))
    found = means(runtime, passes=passes)
    assert np.abs(found - expected(bundles, passes)).max() <= ROUNDING
    if passes == 3:
        assert np.array_equal(found, means(runtime))
    else:
        assert np.abs(found - means(runtime)).max() > 100 * ROUNDING


@pytest.mark.anyio
async def test_the_door_takes_them_and_tells_them() -> None:
    body = {"observations": observations()[:50].tolist(), "model": "linear", "fields": ["mean"]}
    async with serving("linear") as client:
        own, three, one = [await answer(client, body | given) for given in ({}, {"passes": 3}, {"passes": 1})]
        assert [reply["passes"] for reply in (own, three, one)] == [3, 3, 1]
        assert own["steps"] == three["steps"] != one["steps"]
        refused = await client.post("/filter", json=body | {"passes": 4})
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, "passes")


def test_a_live_stream_takes_them_and_tells_them(live: Live, bundles: Path) -> None:
    rows = observations()[:20].tolist()
    with live(bundles=(bundles / "linear",)) as url:
        asked = {"model": "linear", "passes": 1, "fields": ["mean"]}
        one = httpx.post(f"{url}/filter", json={**asked, "observations": rows}).json()["steps"]
        ready, *found = replies_of(url, asked, *({"y": row} for row in rows))
        assert ready["passes"] == 1 and found == one
