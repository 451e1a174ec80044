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
from rfa.service.engine.text.sampling import Choice, DrawnToken, Draws, TopLogits

# Of a step's memory for each of its logits: those themselves, weights, and what is sorted of them.
BYTES_PER_LOGIT = 64
SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)


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
        rows = [_numbers(choice, self._vocabulary) for choice in draws.choices]
        padding = [_numbers(Choice(), self._vocabulary)] * (self._size - len(rows))
        columns = zip(*rows, *padding, strict=True)
        for name, column in zip(Distribution._fields, (*columns, draws.calibration), strict=True):
            self._given.arrays[name][:] = column

    def compute(self, output: StepOutput, is_finite: Tensor, *, is_ranked: bool) -> Ranked | None:
        """Choose; on the device only.

        Args:
            output: of the step.
            is_finite: `[B]` float32, 1 where what a row keeps is, else 0.
            is_ranked: the best tokens are told (`Draws.are_ranked`): the order of all is given back.
        """
        tensors = self._given.tensors
        given = Distribution(*(tensors[name] for name in Distribution._fields))
        draw(output, is_finite, given, Drawn(**self._found.tensors))
        return ranked(output.logits) if is_ranked else None

    def read(self, draws: Draws, latent: Tensor, order: Ranked | None) -> tuple[list[DrawnToken], NDArray[np.bool_]]:
        """Wait for the device, and tell what is asked for of the rows that are no padding, and whether what each keeps
        is finite.

        Args:
            latent: `[B, H, 2D]` of the step.
            order: as `compute` gave it.
        """
        self._found.fetch()
        count = len(draws.choices)
        found = {name: part[..., :count].copy() for name, part in self._found.arrays.items()}
        numbers = dict(zip(NUMBERS, found["numbers"], strict=True))
        scales = np.array([[1], [draws.calibration]], dtype=np.float32)
        with np.errstate(all="ignore"):  # a broken row is told as one
            normalisers = numbers["top"] / scales + np.log(found["sums"] / fixed_point(self._vocabulary))
            log_probabilities = numbers["chosen"] / scales - normalisers
        finite = (numbers["is_finite"] == 1) & np.isfinite(normalisers).all(0)
        tops = _tops(draws.choices, normalisers[0], order)
        # What a device chose of a broken row is nothing to tell.
        chosen = np.where(finite, found["tokens"], 0)
        latents = latent[:count].cpu().numpy() if any(choice.with_latent for choice in draws.choices) else None
        tokens = [
            DrawnToken(
                int(chosen[row]),
                float(log_probabilities[0, row]),
                float(log_probabilities[1, row]),
                bool(finite[row]),
                tops[row] if finite[row] else None,
                latents[row] if latents is not None and choice.with_latent else None,
            )
            for row, choice in enumerate(draws.choices)
        ]
        return tokens, numbers["slots_finite"] == 1


def _numbers(choice: Choice, vocabulary: int) -> tuple[float, float, int, float]:
    """Of a row, in the order of `Distribution`."""
    if choice.temperature is None:
        return math.inf, 0.0, 0, 1.0
    return (
        math.inf if choice.top_p is None or choice.top_p >= 1 else choice.top_p,
        choice.uniform,
        min(choice.top_k or vocabulary, vocabulary) - 1,
        max(choice.temperature, SMALLEST_TEMPERATURE),
    )


def _tops(choices: Sequence[Choice], normalisers: NDArray[np.float64], order: Ranked | None) -> list[TopLogits | None]:
    """The most probable tokens of the rows that ask for some."""
    most = max(choice.top for choice in choices)
    if order is None or most == 0:
        return [None] * len(choices)
    logits, tokens = (part[: len(choices), :most].cpu().numpy() for part in order)
    told = logits.astype(np.float64) - normalisers[:, None]
    return [
        TopLogits(tokens[row, : choice.top], told[row, : choice.top]) if choice.top else None
        for row, choice in enumerate(choices)
    ]
