"""The next tokens of a batch, chosen on the device that its logits are on: `sampling.drawn_tokens` in torch.

The order of tokens, ties, and which of them are the k best are those of the CPU, which are exact there and here, and so
are the random numbers, which the host lays beside the other inputs. Exponentials are float32; a device's differ from a
processor's in their last digits, which moves the bounds between tokens by as little. They are summed as integers, in
units of 2^-46 and less: sums that are the same in any order, so that a row is the same in a batch of any size, and that
never fall from one token to the next, as sums of floats in a tree do.

Nothing here waits for the device or depends on what it computes in its shape: all can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rfa.model.language import StepOutput
from rfa.service.engine.text.sampling import Choice, DrawnToken, Draws, TopLogits

Fields = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
# Of a step's memory for each of its logits: what is sorted and summed of them, and those themselves.
BYTES_PER_LOGIT = 64
SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)
# What the host wants of each row beside its token and its sums, in float32.
NUMBERS = ("top", "chosen", "lowest", "log_precision", "latent_lowest", "latent_highest", "slots_finite")


class Distribution(NamedTuple):
    """What B rows are drawn from, and by which uniforms: `filtered_probabilities`. A row that is not drawn takes the
    best of the first place with the uniform 0, which is the first of the most probable tokens.

    Args:
        top_p: `[B]` float64, infinite where everything is kept.
        uniform: `[B]` float64, in [0, 1).
        last_place: `[B]` int64, of the k best, counted from 0.
        temperature: `[B]` float32, at least `SMALLEST_TEMPERATURE`.
    """

    top_p: Tensor
    uniform: Tensor
    last_place: Tensor
    temperature: Tensor


class Ranked(NamedTuple):
    """Logits and their tokens `[B, V]`, best first, ties by token."""

    logits: Tensor
    tokens: Tensor


def ranked(logits: Tensor) -> Ranked:
    """The order of the tokens of each row."""
    return Ranked(*logits.sort(dim=-1, descending=True, stable=True))


def fixed_point(vocabulary: int) -> float:
    """The power of two by which weights of at most 1 are multiplied before they are cut to integers, so that the sum of
    all of a row stays below 2^62."""
    return 2.0 ** (62 - math.ceil(math.log2(vocabulary)))


def integer_weights(exponents: Tensor) -> Tensor:
    """exp of exponents `[..., V]` of at most 0 as int64, in units of 1 / `fixed_point`."""
    return exponents.exp().mul_(fixed_point(exponents.shape[-1])).long()


def drawn(rows: Ranked, given: Distribution, out: Tensor) -> Tensor:
    """The tokens `[B]` whose intervals hold the uniforms; written to `out`, int64."""
    exponents = (rows.logits - rows.logits[:, :1]).div_(given.temperature[:, None])
    weights = integer_weights(exponents).mul_(exponents >= exponents.gather(1, given.last_place[:, None]))
    total = weights.cumsum(1)
    weights.mul_(total - weights < total[:, -1:] * given.top_p[:, None])
    # The interval of a token begins where that of the token before it ends, whichever of them is better.
    total = weights.new_empty(weights.shape).scatter_(1, rows.tokens, weights).cumsum(1)
    # The largest uniform is 1 - 2^-53: its product with a number rounds to less than that.
    marks = (total[:, -1:] * given.uniform[:, None]).long()
    found = torch.searchsorted(total, marks, right=True)
    # Only a row that is broken goes beyond.
    return torch.clamp(found[:, 0], max=weights.shape[1] - 1, out=out)


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
            "divisors": (torch.float32, (2,)),
        }

    def lay(self, draws: Draws) -> None:
        """Put what is asked for among what goes in next."""
        rows = [_numbers(choice, self._vocabulary) for choice in draws.choices]
        padding = [_numbers(Choice(), self._vocabulary)] * (self._size - len(rows))
        for name, column in zip(Distribution._fields, zip(*rows, *padding, strict=True), strict=True):
            self._given.arrays[name][:] = column
        self._given.arrays["divisors"][:] = -1, -draws.calibration

    def compute(self, output: StepOutput, is_finite: Tensor, *, is_ranked: bool) -> Ranked | None:
        """Choose; on the device only.

        Args:
            output: of the step.
            is_finite: `[B]` float32, 1 where what a row keeps is, else 0.
            is_ranked: the draws need the order of the tokens (`Draws.are_ranked`), which is given back.
        """
        logits, given, found = output.logits, self._given.tensors, self._found.tensors
        if is_ranked:
            order = ranked(logits)
            drawn(order, Distribution(*(given[name] for name in Distribution._fields)), found["tokens"])
            chosen = logits.gather(1, found["tokens"][:, None])[:, 0]
            top, lowest = order.logits[:, 0], order.logits[:, -1]
        else:
            order = None
            top = chosen = logits.new_empty(self._size)
            torch.max(logits, dim=-1, out=(top, found["tokens"]))
            lowest = logits.amin(-1)
        # logits / scale - top / scale `[2, B, V]`: of divisors with the other sign there is no difference to be taken.
        divisors = given["divisors"][:, None, None]
        exponents = torch.addcdiv(top[:, None] / divisors, logits, divisors, value=-1)
        torch.sum(integer_weights(exponents), dim=-1, out=found["sums"])
        # A number that is none is the largest of all, or stays one in both.
        latent = torch.aminmax(output.latent.flatten(1), dim=1)
        numbers = [top, chosen, lowest, output.log_precision, *latent, is_finite]
        torch.stack(numbers, out=found["numbers"])
        return order

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
        finite = np.isfinite(found["numbers"]).all(0) & np.isfinite(normalisers).all(0)
        tops = _tops(draws.choices, normalisers[0], order)
        latents = latent[:count].cpu().numpy() if any(choice.with_latent for choice in draws.choices) else None
        tokens = [
            DrawnToken(
                int(found["tokens"][row]),
                float(log_probabilities[0, row]),
                float(log_probabilities[1, row]),
                bool(finite[row]),
                tops[row],
                latents[row] if latents is not None and choice.with_latent else None,
            )
            for row, choice in enumerate(draws.choices)
        ]
        return tokens, numbers["slots_finite"] == 1


class Packed:
    """Arrays of several types in one piece of a device's memory and in one of the host's, so that one copy moves all.

    Args:
        fields: type and shape of each.
        device: the device.

    Attributes:
        tensors: the arrays on the device.
        arrays: those on the host, which a GPU reads and writes by itself.
    """

    def __init__(self, fields: Fields, device: torch.device) -> None:
        # Larger types first: each begins at a multiple of its size.
        fields = dict(sorted(fields.items(), key=lambda field: -field[1][0].itemsize))
        sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in fields.values()]
        self._there = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
        self._here = torch.zeros(sum(sizes), dtype=torch.uint8, pin_memory=self._there.is_cuda)
        there, here = (
            {
                name: part.view(dtype).view(shape)
                for (name, (dtype, shape)), part in zip(fields.items(), memory.split(sizes), strict=True)
            }
            for memory in (self._there, self._here)
        )
        self.tensors = there
        self.arrays = {name: part.numpy() for name, part in here.items()}

    def send(self) -> None:
        """Copy from the host to the device, behind what it was given to do."""
        self._there.copy_(self._here, non_blocking=True)

    def fetch(self) -> None:
        """Copy from the device to the host, and wait for it."""
        self._here.copy_(self._there)


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
