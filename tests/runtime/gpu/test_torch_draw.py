"""Tokens chosen on a device, here a CPU: those of `sampling`, both within rounding of the distribution asked for.

Once by the reference in torch, once by the kernel of a GPU, in Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rfa.model import draw as drawing
from rfa.model.language import StepOutput
from rfa.model.packed import Packed
from rfa.runtime.gpu.draw import TokenDraw
from rfa.runtime.text.sampling import Choice, DrawnToken, Draws, drawn_tokens

CALIBRATION = np.float32(1.3)
EPS = float(np.finfo(np.float32).eps)
# How far from the truth exponentials are, in units of the last place: numpy's 2.52, torch's 1, a GPU's 2.
EXP_ULPS = (2.52, 2.0)
# Weights are divided by their sum, and those of the nucleus once more.
QUOTIENTS = 2
INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
by_kernel = pytest.mark.skipif(not INTERPRETED, reason="no interpreter of Triton")
SIDES = ["torch", pytest.param("kernel", marks=by_kernel)]


@pytest.fixture
def side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two draws."""
    monkeypatch.setattr(drawing, "is_on_gpu", lambda _: request.param == "kernel")
    return str(request.param)


either_side = pytest.mark.parametrize("side", SIDES, indirect=True)


def draw_of(size: int, vocabulary: int, draws: Draws) -> TokenDraw:
    device = torch.device("cpu")
    given = Packed(TokenDraw.input_fields(size), device)
    made = TokenDraw(size, vocabulary, given, device)
    made.set_inputs(draws)
    given.send()
    return made


def on_device(logits: np.ndarray, draws: Draws, size: int | None = None) -> list[DrawnToken]:
    """As `drawn_tokens`, of rows that are padded to `size`."""
    rows, vocabulary = logits.shape
    size = size or rows
    draw = draw_of(size, vocabulary, draws)
    padding = [(0, size - rows), (0, 0)]
    output = StepOutput(torch.from_numpy(np.pad(logits, padding)), torch.zeros(size), torch.zeros(size, 2, 4))
    draw.compute(output, torch.ones(size), is_filtered=draws.are_filtered)
    return draw.read(draws, output)[0]


def on_host(logits: np.ndarray, draws: Draws) -> list[DrawnToken]:
    return drawn_tokens(logits, np.zeros(len(logits), np.float32), np.zeros((len(logits), 2, 4), np.float32), draws)


def interval(logits: np.ndarray, choice: Choice, token: int) -> tuple[float, float]:
    """Within what a uniform lies that gives a token, by float64 and what the rounding of either side can change.

    A weight that is off by a part e moves a bound F between two tokens by 2 e F (1 - F) at most. A token that top_p may
    keep or not, for such an error of the sum before it, moves it by its own share.
    """
    assert choice.temperature is not None
    size = len(logits)
    temperature = np.float32(max(choice.temperature, float(np.finfo(np.float32).tiny)))
    with np.errstate(over="ignore"):
        scaled = ((logits - logits.max()) / temperature).astype(np.float64)
    kept = np.ones(size, bool)
    if choice.top_k is not None and choice.top_k < size:
        kept = scaled >= np.sort(scaled)[-choice.top_k]
    weights = np.where(kept, np.exp(scaled), 0)
    error = (sum(EXP_ULPS) + QUOTIENTS / 2) * EPS
    cut = size * 2.0 ** -(62 - math.ceil(math.log2(size)))  # of integers, in units of the largest weight
    doubtful = 0.0
    if choice.top_p is not None and choice.top_p < 1:
        order = np.argsort(-logits, kind="stable")
        share = weights[order] / weights.sum()
        before = np.cumsum(share) - share
        # The sum that all are divided by is numpy's: of 128 numbers by eight sums of 16, and those in pairs.
        summed = (16 + max(0, math.log2(size / 128))) * EPS / 2
        tolerance = 2 * error * before * (1 - before) + summed * before + cut + 1e-15
        is_doubtful = np.abs(before - choice.top_p) <= tolerance
        weights[order[~is_doubtful & (before > choice.top_p)]] = 0
        doubtful = weights[order[is_doubtful]].sum() / (weights.sum() - weights[order[is_doubtful]].sum())
    total = np.cumsum(weights)
    below, above = (total[token] - weights[token]) / total[-1], total[token] / total[-1]
    assert weights[token] > 0, "a token that is not among those to draw from"
    low, high = (2 * error * at * (1 - at) + cut + doubtful + 1e-15 for at in (below, above))
    return below - low, above + high


def check(logits: np.ndarray, choices: Sequence[Choice]) -> int:
    """Both sides draw what the distribution has there; how often it is not the same."""
    draws = Draws(choices, CALIBRATION)
    differing = 0
    for row, (found, reference) in enumerate(zip(on_device(logits, draws), on_host(logits, draws), strict=True)):
        assert found.is_finite and reference.is_finite
        choice = choices[row]
        if choice.temperature is None:
            assert found.token == reference.token == int(logits[row].argmax())
        for side in (found, reference) if choice.temperature is not None else ():
            low, high = interval(logits[row], choice, side.token)
            assert low <= choice.uniform <= high, (choice, side.token)
        same_top(found, reference, choice.top)
        if found.token == reference.token:
            # A logarithm of sums whose terms are off by an ulp or two.
            assert abs(found.log_probability - reference.log_probability) <= (sum(EXP_ULPS) + 1) * EPS
            assert abs(found.calibrated - reference.calibrated) <= (sum(EXP_ULPS) + 1) * EPS
        else:
            differing += 1
    return differing


def same_top(found: DrawnToken, reference: DrawnToken, count: int) -> None:
    assert (found.top is None) == (reference.top is None) == (count == 0)
    if found.top is not None and reference.top is not None:
        assert found.top.tokens.tolist() == reference.top.tokens.tolist()
        gap = np.abs(found.top.log_probabilities - reference.top.log_probabilities)
        assert gap.max() <= (sum(EXP_ULPS) + 1) * EPS


def choice_of(draw: np.random.Generator, vocabulary: int) -> Choice:
    """Any that a request can ask for; a fifth is greedy."""
    top = int(draw.integers(0, 4))
    if draw.random() < 0.2:
        return Choice(top=top)
    return Choice(
        temperature=float(10 ** draw.uniform(-3, 2)),
        top_k=None if draw.random() < 0.4 else int(np.ceil(vocabulary ** draw.random())),
        top_p=None if draw.random() < 0.4 else float(draw.choice([draw.random(), 1e-9, 0.9, 1 - 1e-9, 1.0])),
        uniform=draw.random(),
        top=top,
    )


@pytest.mark.parametrize(
    ("vocabulary", "rows", "side"),
    [
        *((vocabulary, rows, "torch") for vocabulary, rows in ((4_096, 400), (50_257, 120), (300, 2_000))),
        (7, 2_000, "torch"),
        *(
            pytest.param(*few, "kernel", marks=[by_kernel, pytest.mark.slow])
            for few in ((7, 80), (300, 200), (4_096, 40))
        ),
    ],
    indirect=["side"],
)
@pytest.mark.usefixtures("side")
def test_tokens_are_those_of_the_cpu(vocabulary: int, rows: int) -> None:
    draw = np.random.default_rng(vocabulary)
    differing = 0
    for first in range(0, rows, 40):
        logits = draw.choice([0.1, 1, 3, 8], (40, 1)) * draw.standard_normal((40, vocabulary))
        if first % 120 == 0:  # many ties
            logits = np.round(logits)
        if first % 200 == 0:  # one token that has nearly everything
            logits[np.arange(40), draw.integers(vocabulary, size=40)] += draw.choice([10, 40, 1e4], 40)
        if first % 280 == 0:  # tokens that can only be ruled out
            logits[draw.random(logits.shape) < 0.5] -= 1e30
        differing += check(logits.astype(np.float32), [choice_of(draw, vocabulary) for _ in range(40)])
    # Where each is explained, there are few of them: a bound that moves by 1e-7 passes few uniforms.
    assert differing <= rows // 100


TIED = np.array([1, 3, 3, 0, 3, 3, 1, 2], np.float32)
SPLIT = np.nextafter(np.float32(1), np.float32(0))


@either_side
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of the interpreter's NumPy, between ends of the range
@pytest.mark.usefixtures("side")
@pytest.mark.parametrize(
    ("logits", "choice", "expected"),
    [
        # All of the k-th place stay: the uniform takes the last of four.
        (TIED, Choice(1.0, top_k=2, uniform=0.99), 5),
        (TIED, Choice(1.0, top_k=1, uniform=0.26), 2),
        # The nucleus takes the first of equal ones: 0.25 and a little of the mass is two tokens.
        (TIED, Choice(1.0, top_k=4, top_p=0.26, uniform=0.99), 2),
        (TIED, Choice(1.0, top_k=4, top_p=0.25, uniform=0.99), 1),
        (TIED, Choice(1.0, top_k=4, top_p=0.75, uniform=0.34), 2),
        (TIED, Choice(), 1),
        # Of two logits that have one exponential the better is first, though its index is not.
        (np.array([SPLIT, 1], np.float32), Choice(100.0, top_p=0.3, uniform=0.5), 1),
        # Two that have one exponent, of which the better has the last place, both stay.
        (np.array([3, 1, SPLIT], np.float32), Choice(1.0, top_k=2, uniform=0.999), 2),
        # The last place is below all weight: what is kept of 1.553 is 1.382, and so more than the best two.
        (np.array([0, -1, -2, -3, *[-99] * 4], np.float32), Choice(1.0, top_k=6, top_p=0.89, uniform=0.999), 2),
        # The bound between two equal ones, from above and from below.
        (np.array([0, 0], np.float32), Choice(1.0, uniform=0.5), 1),
        (np.array([0, 0], np.float32), Choice(1.0, uniform=math.nextafter(0.5, 0)), 0),
        # Ends of the range.
        (TIED, Choice(1e-3, uniform=0.0), 1),
        (TIED, Choice(100.0, uniform=0.0), 0),
        (TIED, Choice(100.0, uniform=1 - 2.0**-53), 7),
        (np.array([0, -200, 0, -200], np.float32), Choice(1.0, uniform=1 - 2.0**-53), 2),
        (TIED, Choice(0.0, uniform=0.99), 5),
        (TIED, Choice(1.0, top_k=99, top_p=1.0, uniform=0.0), 0),
        (np.array([-3e38, 3e38], np.float32), Choice(1.0, uniform=1 - 2.0**-53), 1),
        # Both zeros are one number.
        (np.array([-0.0, 0.0, -1], np.float32), Choice(1.0, top_p=0.3, uniform=0.5), 0),
        (np.array([-0.0, 0.0, -1], np.float32), Choice(), 0),
    ],
)
def test_ties_and_ends_are_those_of_the_cpu(logits: np.ndarray, choice: Choice, expected: int) -> None:
    draws = Draws([choice], CALIBRATION)
    assert [side(logits[None], draws)[0].token for side in (on_device, on_host)] == [expected, expected]


@either_side
@pytest.mark.usefixtures("side")
def test_the_best_tokens_are_ordered_with_ties_by_index() -> None:
    (found,) = on_device(TIED[None], Draws([Choice(top=6)], CALIBRATION))
    assert found.top is not None and found.top.tokens.tolist() == [1, 2, 4, 5, 7, 0]
    (all_of_them,) = on_device(TIED[None], Draws([Choice(top=32)], CALIBRATION))
    assert all_of_them.top is not None
    np.testing.assert_allclose(np.exp(all_of_them.top.log_probabilities).sum(), 1, atol=8 * EPS)


@pytest.mark.parametrize(
    ("vocabulary", "side"),
    [
        *((vocabulary, "torch") for vocabulary in (7, 4_096, 50_257)),
        pytest.param(300, "kernel", marks=by_kernel),
        pytest.param(50_257, "kernel", marks=[by_kernel, pytest.mark.slow]),
    ],
    indirect=["side"],
)
@pytest.mark.usefixtures("side")
def test_a_row_gets_in_company_what_it_gets_alone(vocabulary: int) -> None:
    """Greedy rows too, which alone need no order of the tokens; to the last digit."""
    draw = np.random.default_rng(3)
    logits = (4 * draw.standard_normal((9, vocabulary))).astype(np.float32)
    choices = [
        *(Choice(), Choice(0.8, uniform=0.3), Choice(top=3), Choice(2.0, top_k=5, uniform=0.9), Choice(top=32)),
        *(Choice(1.0, top_p=0.5, uniform=0.7, top=1), Choice(with_latent=True), Choice(), Choice(1e-3, uniform=0.5)),
    ]
    together = on_device(logits, Draws(choices, CALIBRATION), size=12)
    for row, choice in enumerate(choices):
        (alone,) = on_device(logits[row : row + 1], Draws([choice], CALIBRATION))
        assert comparable(alone) == comparable(together[row])
        assert (alone.latent is not None) == choice.with_latent


def comparable(drawn: DrawnToken) -> Any:
    top = drawn.top and (drawn.top.tokens.tolist(), drawn.top.log_probabilities.tolist())
    return drawn.token, drawn.log_probability, drawn.calibrated, drawn.is_finite, top


GREEDY, SAMPLED = Choice(), Choice(0.9, top_k=3, top_p=0.9, uniform=0.999, top=2)
VALUES = (np.nan, np.inf, -np.inf)


@pytest.mark.usefixtures("side")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's NumPy, about NaN
@pytest.mark.parametrize(
    ("value", "choice", "side"),
    [
        *((value, choice, "torch") for value in VALUES for choice in (GREEDY, SAMPLED)),
        *(pytest.param(value, GREEDY, "kernel", marks=by_kernel) for value in VALUES),
        pytest.param(np.nan, SAMPLED, "kernel", marks=by_kernel),
    ],
    indirect=["side"],
)
@pytest.mark.parametrize("broken", ["logits", "log_precision", "latent"])
def test_a_broken_row_is_reported_and_changes_no_other(value: float, broken: str, choice: Choice) -> None:
    draw = np.random.default_rng(0)
    output = {
        "logits": draw.standard_normal((3, 300), dtype=np.float32),
        "log_precision": draw.standard_normal(3, dtype=np.float32),
        "latent": draw.standard_normal((3, 2, 4), dtype=np.float32),
    }
    draws = Draws([choice] * 3, CALIBRATION)

    def both() -> list[list[DrawnToken]]:
        tensors = StepOutput(*(torch.from_numpy(part) for part in output.values()))
        made = draw_of(3, 300, draws)
        made.compute(tensors, torch.ones(3), is_filtered=draws.are_filtered)
        return [made.read(draws, tensors)[0], drawn_tokens(**output, draws=draws)]

    healthy = [list(map(comparable, side)) for side in both()]
    output[broken].reshape(3, -1)[1, -1] = value
    for side, before in zip(both(), healthy, strict=True):
        assert [row.is_finite for row in side] == [True, False, True]
        assert (side[1].token, side[1].top) == (0, None)
        assert [comparable(side[0]), comparable(side[2])] == [before[0], before[2]]


@either_side
@pytest.mark.usefixtures("side")
def test_broken_slots_are_distinguished() -> None:
    draws = Draws([Choice()] * 3, CALIBRATION)
    made = draw_of(4, 5, draws)
    output = StepOutput(torch.zeros(4, 5), torch.zeros(4), torch.zeros(4, 2, 4))
    made.compute(output, torch.tensor([1.0, 0, 1, 1]), is_filtered=False)
    assert made.read(draws, output)[1].tolist() == [True, False, True]
