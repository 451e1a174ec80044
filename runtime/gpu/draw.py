"""The choice of the next tokens of a batch on its device, as the host sees it: what it asks for and is told of them.

What is computed is `rfa.model.draw`. What goes in and what comes out has fixed places, and crosses in one copy each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rfa.model.draw import NUMBERS, Distribution, Drawn, Ranked, draw, fixed_point, ranked
from rfa.model.language import StepOutput
from rfa.model.packed import Fields, Packed
from rfa.runtime.text.sampling import Choice, DrawnToken, Draws, TopLogits

# Of a step's memory for each of its logits: those themselves, weights, and what is sorted of them.
BYTES_PER_LOGIT = 64
SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)
# What goes in of a row that takes the most probable token.
GREEDY = {"top_p": math.inf, "uniform": 0.0, "last_place": 0, "temperature": 1.0}


class TokenDraw:
    """The choice of the next tokens of a batch, with fixed places for what goes in and what comes out.

    Args:
        size: rows, of which some may be padding.
        vocabulary: tokens.
        given: what goes in, with the fields of `given_fields` among others; whoever computes sends it.
        device: of the logits.
    """

    def __init__(self, size: int, vocabulary: int, given: Packed, device: torch.device) -> None:
        self._size, self._vocabulary, self._given = size, vocabulary, given
        self._found = Packed(
            {
                "sums": (torch.int64, (2, size)),
                "tokens": (torch.int64, (size,)),
                "numbers": (torch.float32, (len(NUMBERS), size)),
            },
            device,
        )

    @staticmethod
    def given_fields(size: int) -> Fields:
        """What goes in, for `size` rows."""
        return {
            "top_p": (torch.float64, (size,)),
            "uniform": (torch.float64, (size,)),
            "last_place": (torch.int64, (size,)),
            "temperature": (torch.float32, (size,)),
            "calibration": (torch.float32, (1,)),
        }

    def lay(self, draws: Draws) -> None:
        """Put what is asked for among what goes in next."""
        given = self._given.arrays
        given["calibration"][:] = draws.calibration
        for name, number in GREEDY.items():
            given[name].fill(number)
        rows = [row for row, choice in enumerate(draws.choices) if choice.temperature is not None]
        if not rows:
            return
        drawn = [draws.choices[row] for row in rows]
        top_p = [math.inf if choice.top_p is None or choice.top_p >= 1 else choice.top_p for choice in drawn]
        places = np.array([choice.top_k or self._vocabulary for choice in drawn])
        given["top_p"][rows] = top_p
        given["uniform"][rows] = [choice.uniform for choice in drawn]
        given["last_place"][rows] = np.minimum(places, self._vocabulary) - 1
        temperatures = np.array([choice.temperature for choice in drawn], dtype=np.float64)
        given["temperature"][rows] = np.maximum(temperatures, SMALLEST_TEMPERATURE)

    def compute(self, output: StepOutput, is_finite: Tensor, *, is_filtered: bool) -> None:
        """Choose; on the device only.

        Args:
            output: of the step.
            is_finite: `[B]` float32, 1 where what a row keeps is, else 0.
            is_filtered: False promises that no row has a filter (`Draws.are_filtered`).
        """
        tensors = self._given.tensors
        given = Distribution(*(tensors[name] for name in Distribution._fields))
        draw(output, is_finite, given, Drawn(**self._found.tensors), is_filtered=is_filtered)

    def read(self, draws: Draws, output: StepOutput) -> tuple[list[DrawnToken], NDArray[np.bool_]]:
        """Wait for the device, and tell what is asked for of the rows that are no padding, and whether what each keeps
        is finite.

        Args:
            output: of the step, as `compute` had it.
        """
        # Behind a graph: few ask for it, and graphs with it would be as many again.
        order = ranked(output.logits) if draws.are_ranked else None
        self._found.fetch()
        choices, count = draws.choices, len(draws.choices)
        found = {name: part[..., :count] for name, part in self._found.arrays.items()}
        numbers = dict(zip(NUMBERS, found["numbers"], strict=True))
        scales = np.array([[1], [draws.calibration]], dtype=np.float32)
        with np.errstate(all="ignore"):  # a broken row is told as one
            normalisers = numbers["top"] / scales + np.log(found["sums"] / fixed_point(self._vocabulary))
            log_probabilities = numbers["chosen"] / scales - normalisers
        finite = (numbers["is_finite"] == 1) & np.isfinite(normalisers).all(0)
        # What a device chose of a broken row is nothing to tell.
        columns = np.where(finite, found["tokens"], 0), *log_probabilities, finite
        tops = _tops(choices, normalisers[0], finite, order)
        latents = _latents(choices, output.latent)
        tokens = list(map(DrawnToken._make, zip(*(column.tolist() for column in columns), tops, latents, strict=True)))
        return tokens, numbers["slots_finite"] == 1


def _tops(
    choices: Sequence[Choice], normalisers: NDArray[np.float64], finite: NDArray[np.bool_], order: Ranked | None
) -> Sequence[TopLogits | None]:
    """The most probable tokens of the rows that ask for some."""
    if order is None:
        return [None] * len(choices)
    most = max(choice.top for choice in choices)
    logits, tokens = (part[: len(choices), :most].cpu().numpy() for part in order)
    told = logits.astype(np.float64) - normalisers[:, None]
    return [
        TopLogits(tokens[row, : choice.top], told[row, : choice.top]) if choice.top and finite[row] else None
        for row, choice in enumerate(choices)
    ]


def _latents(choices: Sequence[Choice], latent: Tensor) -> Sequence[NDArray[np.float32] | None]:
    """Those of the rows that ask for it."""
    if not any(choice.with_latent for choice in choices):
        return [None] * len(choices)
    latents = latent[: len(choices)].cpu().numpy()
    return [latents[row] if choice.with_latent else None for row, choice in enumerate(choices)]
