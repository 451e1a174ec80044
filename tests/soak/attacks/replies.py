"""Family 5: small valid requests with large replies, read at once, slowly, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tests.soak.attacks.catalogue import Drive, add, attack
from tests.soak.attacks.stage import Stage
from tests.soak.attacks.wire import Wire
from tests.soak.requests import message, post

HORIZON = [round(0.1 * number, 1) for number in range(1, 257)]
LEVELS = [round(0.05 + 0.9 * number / 16, 6) for number in range(16)]
# The limit of the server: two million numbers.
WIDE = {"observations": [[1.0, 0.5]] * 113, "horizon": HORIZON, "levels": LEVELS}
SMOOTH = {"observations": [[1.0, 0.5]] * 10_000, "smooth": True, "levels": LEVELS}
SAMPLES = {"observations": [[1.0, 0.5]] * 950, "samples": 1_024}
ATTENTION = {"model": "oscillator", "observations": [[1.0, 0.5]] * 2_000, "mode": "attention", "levels": LEVELS}
ALTERNATIVES = {"n": 16, "top_n_tokens": 32, "temperature": 1.0, "seed": 1}
GENERATE = {"inputs": "It was the", "parameters": {**ALTERNATIVES, "max_new_tokens": 128}}
LATENTS = {"inputs": "It was the", "parameters": {**ALTERNATIVES, "max_new_tokens": 64, "return_latents": True}}
COMPLETIONS = {"prompt": ["It was"] * 256, "n": 16, "max_tokens": 32, "logprobs": 5, "seed": 1}
FAIR = frozenset({200, 422, 429, 503})
SLOW_SECONDS = 0.05
# Seconds before the next request, so that a rejected attacker does not loop.
REPEAT_SECONDS = 0.02
SLOW_PIECE = 4_096
SMALL_BUFFER = 4_096


Documents = Sequence[tuple[str, Any]]
CLAIM = "a large reply comes or is refused in words"


def asked(documents: Documents, lanes: int, *, pause: float = 0.0) -> Drive:
    """Return an attack that requests large replies and reads them, slowly with a pause before each piece."""

    def slow_down(wire: Wire) -> None:
        if pause:
            wire.pause, wire.piece = pause, SLOW_PIECE

    def drive(stage: Stage) -> None:
        requests = [post(*document) for document in documents]
        options: dict[str, Any] = {"receive_buffer": SMALL_BUFFER} if pause else {}
        stage.begin()
        stage.keep_asking(lanes, requests, CLAIM, FAIR, pause=REPEAT_SECONDS, prepare=slow_down, **options)

    return drive


def unread(documents: Documents, lanes: int) -> Drive:
    """Return an attack that requests large replies and reads nothing."""

    def drive(stage: Stage) -> None:
        turns = itertools.cycle([post(*document) for document in documents])
        stage.begin()

        def ask(wire: Wire) -> None:
            wire.send(next(turns))
            stage.sleep(stage.left)

        stage.lanes(lanes, ask, receive_buffer=SMALL_BUFFER)

    return drive


def streamed(documents: Documents) -> Documents:
    """Return the same attack with streamed replies."""
    return [(path, {**document, "stream": True}) for path, document in documents]


IS_WIDE, IS_SMOOTH, IS_ATTENTION = ([("/filter", document)] for document in (WIDE, SMOOTH, ATTENTION))
ARE_SAMPLES = [("/filter", SAMPLES), ("/filter", {**SAMPLES, "stream": True})]
ARE_TEXTS = [("/generate", GENERATE), ("/generate", LATENTS)]
ARE_COMPLETIONS = [("/v1/completions", COMPLETIONS)]
OF_ALL_KINDS = [*IS_WIDE, *IS_SMOOTH, *ARE_SAMPLES, *IS_ATTENTION, *ARE_TEXTS, *ARE_COMPLETIONS]

for name, about, drive in (
    ("replies-wide", "113 observations × 256 horizons × 16 levels, 24 at once.", asked(IS_WIDE, 24)),
    ("replies-wide-64", "The same, 64 at once.", asked(IS_WIDE, 64)),
    ("replies-wide-slowly", "64 at once, each read at 80 kB a second.", asked(IS_WIDE, 64, pause=SLOW_SECONDS)),
    ("replies-wide-unread", "128 at once, none of them read.", unread(IS_WIDE, 128)),
    ("replies-smooth", "Smoothed series of 10,000, 16 at once.", asked(IS_SMOOTH, 16)),
    ("replies-of-samples", "1,024 samples of each of 950 steps, 32 at once.", asked(ARE_SAMPLES, 32)),
    ("replies-of-samples-unread", "The same, 64 at once, none of them read.", unread(ARE_SAMPLES, 64)),
    ("replies-of-attention", "Series of 2,000 by attention over all of it, 16 at once.", asked(IS_ATTENTION, 16)),
    ("replies-of-texts", "16 texts with 32 alternatives a token, and with latents, 24 at once.", asked(ARE_TEXTS, 24)),
    ("replies-of-texts-streamed-unread", "The same streamed, 64 at once, unread.", unread(streamed(ARE_TEXTS), 64)),
    (
        "replies-of-completions",
        "256 prompts × 16 choices with 5 alternatives of each token, 8 at once.",
        asked([*ARE_COMPLETIONS, *streamed(ARE_COMPLETIONS)], 8),
    ),
    ("replies-of-all-kinds", "All of these, 64 at once, slowly.", asked(OF_ALL_KINDS, 64, pause=SLOW_SECONDS / 5)),
):
    add(5, name, about, drive)


@attack(5)
def frames_wide(stage: Stage) -> None:
    """Open live streams with 256 horizons × 16 levels, 500 requests at a time, and read slowly or not at all."""
    question = message({"horizon": HORIZON, "levels": LEVELS, "samples": 16})
    observations = message({"y": [1.0, 0.5]}) * 500
    stage.begin()

    def stream(wire: Wire) -> None:
        is_read = next(kinds)
        wire.pause = SLOW_SECONDS
        wire.send(question + observations)
        while is_read:
            wire.skim()
        stage.sleep(stage.left)

    kinds = itertools.cycle((True, False))
    stage.lanes(32, stream, on_stream=True, receive_buffer=SMALL_BUFFER)
