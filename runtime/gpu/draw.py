"""Sample the next tokens of a batch on its device (`rfa.model.draw`). All inputs are copied at once, as are all
outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rfa.model.draw import NUMBERS, Distribution, Drawn, Ranked, draw, fixed_point, ranked
from rfa.model.language import StepOutput
from rfa.model.packed import Fields, Packed
from rfa.runtime.text.contexts import Advance, Context
from rfa.runtime.text.sampling import Choice, DrawnToken, Draws, TopLogits

DrawFunction = Callable[..., tuple[list[DrawnToken], Sequence[Advance]]]
# Memory of a step per logit in bytes: the logit, its weight, and the sorted values.
BYTES_PER_LOGIT = 64
SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)
# Inputs of a row for which the most probable token is chosen.
GREEDY = {"top_p": math.inf, "uniform": 0.0, "last_place": 0, "temperature": 1.0}


class TokenDraw:
    """Samples the next tokens of a batch, with static input and output buffers.

    Args:
        size: Number of rows, some of which may be padding.
        vocabulary: Number of tokens in the vocabulary.
        inputs: Buffers that contain the fields of `input_fields` and may contain others. The caller sends them to the
            device.
        device: Device of the logits.
    """

    def __init__(self, size: int, vocabulary: int, inputs: Packed, device: torch.device) -> None:
        self._size, self._vocabulary, self._inputs = size, vocabulary, inputs
        self._outputs = Packed(
            {
                "sums": (torch.int64, (2, size)),
                "tokens": (torch.int64, (size,)),
                "numbers": (torch.float32, (len(NUMBERS), size)),
            },
            device,
        )

    @staticmethod
    def input_fields(size: int) -> Fields:
        """Return the fields of the inputs for `size` rows."""
        return {
            "top_p": (torch.float64, (size,)),
            "uniform": (torch.float64, (size,)),
            "last_place": (torch.int64, (size,)),
            "temperature": (torch.float32, (size,)),
            "calibration": (torch.float32, (1,)),
        }

    def set_inputs(self, draws: Draws) -> None:
        """Write the options of the sampling to the buffers on the host."""
        arrays = self._inputs.arrays
        arrays["calibration"][:] = draws.calibration
        for name, number in GREEDY.items():
            arrays[name].fill(number)
        rows = [row for row, choice in enumerate(draws.choices) if choice.temperature is not None]
        if not rows:
            return
        drawn = [draws.choices[row] for row in rows]
        top_p = [math.inf if choice.top_p is None or choice.top_p >= 1 else choice.top_p for choice in drawn]
        ranks = np.array([choice.top_k or self._vocabulary for choice in drawn])
        arrays["top_p"][rows] = top_p
        arrays["uniform"][rows] = [choice.uniform for choice in drawn]
        arrays["last_place"][rows] = np.minimum(ranks, self._vocabulary) - 1
        temperatures = np.array([choice.temperature for choice in drawn], dtype=np.float64)
        arrays["temperature"][rows] = np.maximum(temperatures, SMALLEST_TEMPERATURE)

    def compute(self, output: StepOutput, is_finite: Tensor, *, is_filtered: bool) -> None:
        """Sample the next tokens on the device. `read` returns the results.

        Args:
            output: Output of the step.
            is_finite: 1 if the new state of a row is finite and 0 otherwise, `[B]` float32.
            is_filtered: Whether any row has a filter (`Draws.are_filtered`).
        """
        tensors = self._inputs.tensors
        inputs = Distribution(*(tensors[name] for name in Distribution._fields))
        draw(output, is_finite, inputs, Drawn(**self._outputs.tensors), is_filtered=is_filtered)

    def read(self, draws: Draws, output: StepOutput) -> tuple[list[DrawnToken], NDArray[np.bool_]]:
        """Wait for the device, and return the results of the rows that are not padding.

        Args:
            draws: Options of the sampling for each row.
            output: Output of the step, as in `compute`.

        Returns:
            The sampled tokens, and whether the state of each row is finite.
        """
        # This is outside the graph, because few requests need it, and it would double the number of graphs.
        order = ranked(output.logits) if draws.are_ranked else None
        self._outputs.fetch()
        choices, count = draws.choices, len(draws.choices)
        found = {name: part[..., :count] for name, part in self._outputs.arrays.items()}
        numbers = dict(zip(NUMBERS, found["numbers"], strict=True))
        scales = np.array([[1], [draws.calibration]], dtype=np.float32)
        with np.errstate(all="ignore"):  # reported by `finite`
            normalisers = numbers["top"] / scales + np.log(found["sums"] / fixed_point(self._vocabulary))
            log_probabilities = numbers["chosen"] / scales - normalisers
        finite = (numbers["is_finite"] == 1) & np.isfinite(normalisers).all(0)
        # The device also samples from non-finite rows.
        columns = np.where(finite, found["tokens"], 0), *log_probabilities, finite
        tops = _tops(choices, normalisers[0], finite, order)
        latents = _latents(choices, output.latent)
        tokens = list(map(DrawnToken._make, zip(*(column.tolist() for column in columns), tops, latents, strict=True)))
        return tokens, numbers["slots_finite"] == 1


def draw_by_options(
    on_device: DrawFunction,
    on_host: DrawFunction,
    contexts: Sequence[Context],
    tokens: Sequence[int],
    noise: NDArray[np.float32],
    draws: Draws,
) -> tuple[list[DrawnToken], Sequence[Advance]]:
    """Sample tokens on the device for some rows and on the host for the others. Return the sampled tokens, and the
    updates of the contexts.

    The options of a row determine where it is processed, so its result does not depend on the options of other rows.
    """
    needs_host = np.array([choice.needs_host for choice in draws.choices])
    found: dict[int, tuple[DrawnToken, Advance]] = {}
    # The device runs first, because a step on the host may return views of buffers that the next step overwrites.
    for mask, draw_rows in ((~needs_host, on_device), (needs_host, on_host)):
        rows: list[int] = np.flatnonzero(mask).tolist()
        if not rows:
            continue
        drawn, advances = draw_rows(
            [contexts[row] for row in rows],
            [tokens[row] for row in rows],
            noise[rows],
            Draws([draws.choices[row] for row in rows], draws.calibration),
        )
        found.update(zip(rows, zip(drawn, advances, strict=True), strict=True))
    ordered = [found[row] for row in range(len(contexts))]
    return [drawn for drawn, _ in ordered], [advance for _, advance in ordered]


def _tops(
    choices: Sequence[Choice], normalisers: NDArray[np.float64], finite: NDArray[np.bool_], order: Ranked | None
) -> Sequence[TopLogits | None]:
    """Return the most probable tokens of the rows that request them."""
    if order is None:
        return [None] * len(choices)
    most = max(choice.top for choice in choices)
    logits, tokens = (part[: len(choices), :most].cpu().numpy() for part in order)
    scores = logits.astype(np.float64) - normalisers[:, None]
    return [
        TopLogits(tokens[row, : choice.top], scores[row, : choice.top]) if choice.top and finite[row] else None
        for row, choice in enumerate(choices)
    ]


def _latents(choices: Sequence[Choice], latent: Tensor) -> Sequence[NDArray[np.float32] | None]:
    """Return the latents of the rows that request them."""
    if not any(choice.with_latent for choice in choices):
        return [None] * len(choices)
    latents = latent[: len(choices)].cpu().numpy()
    return [latents[row] if choice.with_latent else None for row, choice in enumerate(choices)]
