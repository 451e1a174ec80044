"""A reply does not depend on the requests before it: random requests to all filters, repeated in other orders.

Few sizes, so that requests to different models use the same buffers.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.service.live import answer, serving

pytestmark = pytest.mark.anyio
MODELS = ("default", "series", "auto", "auto-joint", "linear", "oscillator", None)


def filter_request(draw: random.Random) -> dict[str, Any]:
    """Return a request for a model, or with a system if the model is None."""
    rng, model, step = np.random.default_rng(draw.randrange(1 << 30)), draw.choice(MODELS), draw.choice([1.0, 3600.0])
    rows, columns = draw.choice([20, 60]), 2 if model in ("linear", "oscillator") else draw.choice([1, 2])
    values = 20 + rng.normal(size=(rows, columns)).cumsum(0).round(3)
    values[rng.random(values.shape) < 0.02] += 25
    options: dict[str, Any] = {
        "model": model, "seed": draw.randrange(9), "alarm": draw.choice([None, {"rate": 0.01}]),
        "levels": draw.choice([[0.5], [0.5, 0.9]]), "horizon": draw.choice([[step], [step, 5 * step]]),
        "samples": draw.choice([0, 2]), "range": draw.choice([None, [0, 60]]),
    }  # fmt: skip
    if model is None:
        options["system"] = {
            "preset": draw.choice(["level", "constant_velocity"]), "dimensions": columns, "process_noise": 0.1,
            "measurement_noise": 0.25,
        }  # fmt: skip
    rows_or_null = [[None if draw.random() < 0.03 else value for value in row] for row in values.tolist()]
    given = {name: value for name, value in options.items() if value is not None}
    return given | {"observations": rows_or_null, "times": (1.7e9 + step * np.arange(rows)).tolist()}


async def replies_equal(seed: int, requests: int, orders: int) -> None:
    """Fail if a request has another reply in a later order."""
    draw = random.Random(seed)
    bodies = [filter_request(draw) for _ in range(requests)]
    async with serving("series", "linear", "oscillator") as client:

        async def reply(body: dict[str, Any]) -> Any:
            document = await answer(client, body)
            return document["steps"], document.get("ahead"), document.get("warnings")

        first = [await reply(body) for body in bodies]
        for _ in range(orders):
            for index in draw.sample(range(requests), requests):
                assert await reply(bodies[index]) == first[index], {
                    name: value for name, value in bodies[index].items() if name not in ("observations", "times")
                }


async def test_a_reply_is_the_same_after_other_requests() -> None:
    await replies_equal(seed=0, requests=20, orders=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
async def test_a_reply_is_the_same_after_many_requests(seed: int) -> None:
    await replies_equal(seed, requests=150, orders=4)
