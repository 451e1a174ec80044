"""Make cases of the oddities of the grammar.

A case is a pure function of the seed and its number. Most have some valid requests, one oddity, and more valid
requests, the last of which has `Connection: close`, so that the server closes after valid input. The reference parser
decides whether the oddity is valid.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tests.soak.wire import grammar
from tests.soak.wire.application import Truth
from tests.soak.wire.case import Case, Part, Step, paced
from tests.soak.wire.frames import live_stream, strange_handshake
from tests.soak.wire.maker import Maker

Odd = Callable[[Maker], list[Part]]
# The oddities and their frequency.
ODDITIES: Mapping[Odd, int] = {
    grammar.honest: 10,
    grammar.methods: 5,
    grammar.targets: 5,
    grammar.versions: 5,
    grammar.lengths: 10,
    grammar.codings: 10,
    grammar.both: 7,
    grammar.chunks: 12,
    grammar.trailers: 7,
    grammar.upgrades: 10,
    grammar.expectations: 6,
    grammar.names: 5,
    grammar.values: 6,
    grammar.line_ends: 6,
    grammar.hosts: 4,
    grammar.garbage: 5,
    grammar.large: 1,
    grammar.mutated: 12,
    live_stream: 9,
    strange_handshake: 4,
}
_KINDS, _WEIGHTS = tuple(ODDITIES), tuple(ODDITIES.values())
RARE: Mapping[Odd, float] = {grammar.long_pipeline: 0.002, grammar.flood: 0.0003}


def make_case(seed: int, index: int, truth: Truth, *, is_proxied: bool = False) -> Case:
    """Return the case of a number. It is always the same."""
    rng = random.Random(f"{seed}:{index}")
    maker = Maker(rng, seed, index, truth, is_proxied=is_proxied)
    odd = rng.choices(_KINDS, _WEIGHTS)[0]
    for rare, share in RARE.items():
        if rng.random() < share:
            odd = rare
    parts: list[Part] = [maker.honest() for _ in range(rng.choice((0, 0, 0, 1, 1)))] if odd is not live_stream else []
    parts += odd(maker)
    if odd not in (live_stream, strange_handshake) or rng.random() < 0.3:
        parts += [maker.honest() for _ in range(rng.choice((0, 0, 0, 1)))]
        parts.append(maker.last())
    steps = paced(rng, parts)
    return Case(index, odd.__name__.replace("_", " "), tuple(_ended(rng, steps)))


def _ended(rng: random.Random, steps: list[Step]) -> list[Step]:
    """Most clients wait for the end. Some half-close, and some break off at any point."""
    manner = rng.random()
    if manner < 0.80:
        return steps
    if manner < 0.90:
        return [*steps, Step("half-close")]
    place = rng.randrange(len(steps)) if steps else 0
    step = steps[place] if steps else Step("send")
    begun = Step("send", step.data[: rng.randrange(len(step.data))] if step.data else b"")
    ends = (Step("reset"), Step("leave"), Step("half-close"))
    return [*steps[:place], begun, Step("pause", seconds=rng.choice((0.0, 0.002))), rng.choice(ends)]
