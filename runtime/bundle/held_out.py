"""Held-out tokens in the calibration.json of a language model, with which the stated confidence is verified.

One position in `every` of each held-out window is a row. It contains the confidence of the most likely token, and
whether that token was correct. `modes.<mode>.rows` contains at most `MAX_ROWS` rows in order. They are far apart and
therefore nearly independent.

    when a bundle is opened   the expected calibration error (ECE) of the rows must agree with that of all held-out
                              tokens, within the range that chance allows (`chance`)
    when it is loaded         the model reads the first windows (`data.rows.tokens`) in pieces, and its confidences at
                              the ends of the pieces must equal those of the rows (`check_confidences`)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.bundle.documents import BundleError
from rfa.runtime.bundle.golden import ABSOLUTE, RELATIVE, Session
from rfa.runtime.bundle.token_confidence import TokenConfidence

WINDOW = 512  # tokens of a held-out window
MAX_ROWS = 1_024
MAX_WINDOWS = 2  # windows that are read when a bundle is loaded
MAX_REACH = 256  # tokens of each window that are read, about a third of a second
PIECES = 4  # maximum number of pieces in which a window is read
DIGITS = 6  # decimal places of a confidence
# Allowed deviation in standard errors. It rejects one in three million correct bundles.
CHANCES = 5.0
MOST_PASSES = 64  # largest `inner` of a model

Windows = NDArray[np.int64]
Reals = NDArray[np.float64]


def spacing(held_out: Windows) -> int:
    """Return the number of tokens between two recorded positions of a window. `held_out` has shape
    `[windows, window + 1]`."""
    count, window = held_out.shape[0], held_out.shape[1] - 1
    return min(window, -(-count * window // MAX_ROWS))


def kept_tokens(held_out: Windows) -> list[list[int]]:
    """Return the tokens of the first held-out windows. Each list begins at the start of a window and ends at a recorded
    position."""
    every = spacing(held_out)
    reach = min(held_out.shape[1] - 1, MAX_REACH) // every * every
    found: list[list[int]] = held_out[:MAX_WINDOWS, : reach + 1].tolist()
    return found


def kept_rows(confidence: Reals, is_right: NDArray[np.bool_], held_out: Windows) -> dict[str, Any]:
    """Return the entry `rows` of a mode in calibration.json: the confidences at the recorded positions, and whether the
    most probable tokens were correct.

    Args:
        confidence: Confidence of the most probable token at every position of every window, `[windows * window]`.
        is_right: Whether that token was correct, `[windows * window]`.
        held_out: Tokens, `[windows, window + 1]`.
    """
    every, shape = spacing(held_out), (len(held_out), -1)
    chosen = (confidence.reshape(shape)[:, every - 1 :: every], is_right.reshape(shape)[:, every - 1 :: every])
    rows, right = (part.ravel() for part in chosen)
    return {
        "confidence": [round(float(value), DIGITS) for value in rows],
        "right": "".join("01"[int(value)] for value in right),
    }


def rows_of(calibration: Mapping[str, Any]) -> int:
    """Return the number of held-out positions that each mode records, or 0 for filters and for bundles that record
    none."""
    modes: Mapping[str, Any] = calibration.get("modes", {})
    return max((len(entry["rows"]["right"]) for entry in modes.values() if entry.get("rows")), default=0)


def chance(accuracy: Sequence[float], count: Sequence[int], rows: int) -> tuple[float, float]:
    """Return the range that chance allows for the ECE of a sample of rows minus the ECE of all tokens.

    The fraction of correct tokens in a bin of n rows has variance v/n. The absolute value is convex, so the expected
    ECE of the rows is not below that of all tokens. The difference is at most the mean of |N(0, v/n)| over the bins,
    which is sqrt(2 v bins / (pi rows)) in total. Its standard deviation is at most sqrt(v / rows).

    Args:
        accuracy: Fraction of correct tokens in each bin of all tokens.
        count: Number of tokens in each bin.
        rows: Number of rows.
    """
    total = sum(count)
    # One correct and one wrong token are added to each bin, because a few tokens do not prove certainty.
    shares = ((n, (a * n + 1) / (n + 2)) for n, a in zip(count, accuracy, strict=True))
    variance = sum(n * share * (1 - share) for n, share in shares) / max(total, 1)
    deviation = CHANCES * math.sqrt(variance / rows)
    return -deviation, math.sqrt(2 * variance * len(count) / (math.pi * rows)) + deviation


def check_confidences(
    calibration: Mapping[str, Any], sessions: Mapping[str, ReadableGraph], weights: Mapping[str, NDArray[Any]]
) -> int:
    """Process the stored windows with the graphs of each mode, and compare the confidences with the rows.

    Args:
        calibration: Content of calibration.json.
        sessions: Sessions by graph name.
        weights: Mapping from names to tensors of model.safetensors.

    Returns:
        The number of compared confidences.

    Raises:
        BundleError: If a confidence of the model differs from a row, or its most probable token contradicts the row.
    """
    stored = calibration["data"].get("rows")
    if stored is None:
        return 0
    tokens, every = np.array(stored["tokens"], np.int64), int(stored["every"])
    vocab_size = weights["embedding.weight"].shape[0]
    if tokens.max() >= vocab_size:
        raise BundleError(f"calibration.json: data.rows.tokens: a token is outside the vocabulary of {vocab_size}")
    rows_per_window = int(calibration["data"]["window"]) // every
    positions = (tokens.shape[1] - 1) // every
    piece = every * -(-positions // PIECES)
    compared = 0
    for mode, read in (("recurrent", _recurrent), ("attention", _attention)):
        if calibration["modes"].get(mode) is None:
            continue
        rows = calibration["modes"][mode]["rows"]
        scaled = TokenConfidence.of(calibration, mode)
        for end, logits in read(tokens[:, :-1], piece, sessions, weights):
            for window, scores in enumerate(logits):
                row = window * rows_per_window + end // every - 1
                stated, is_right = rows["confidence"][row], rows["right"][row] == "1"
                reason = _difference(scores, scaled, stated, is_right, int(tokens[window, end]))
                if reason is not None:
                    raise BundleError(f"calibration.json: modes.{mode}.rows: row {row}: {reason}")
                compared += 1
    return compared


def _difference(
    logits: NDArray[np.float32], calibration: TokenConfidence, stated: float, is_right: bool, token: int
) -> str | None:
    """Describe the difference between the output of the model and a recorded position, or return None if they agree
    within the tolerance of the golden outputs."""
    scores = logits.astype(np.float64)
    best, error = scores.max(), ABSOLUTE + RELATIVE * float(np.abs(scores).max())
    scaled = (scores - best) / float(calibration.temperature)
    found = float(calibration(-np.log(np.exp(scaled).sum())))
    # d log softmax = d z_token / T - mean(d z) / T, which is at most twice the error.
    allowed = found * math.expm1(2 * error / float(calibration.temperature)) + 10.0**-DIGITS
    if not abs(found - stated) <= allowed:
        return f"the stated confidence is {stated:.6f}, but the model computes {found:.6f}"
    lead = best - np.partition(scores, -2)[-2] if scores.size > 1 else np.inf
    if lead > 2 * error and is_right != (int(scores.argmax()) == token):
        return f"the most probable token is {'wrong' if is_right else 'right'}, but the row states the opposite"
    return None


class ReadableGraph(Session, Protocol):
    """Interface of a session that also describes its inputs."""

    def get_inputs(self) -> Any: ...


Read = Iterator[tuple[int, NDArray[np.float32]]]


def _recurrent(
    tokens: Windows, piece: int, sessions: Mapping[str, ReadableGraph], weights: Mapping[str, NDArray[Any]]
) -> Read:
    """Yield the number of processed tokens and the last logits `[windows, V]` after each piece of tokens in recurrent
    mode."""
    count = len(tokens)
    carried = {name.removeprefix("initial."): part for name, part in weights.items() if name.startswith("initial.")}
    state = {name: np.repeat(part[None], count, axis=0) for name, part in carried.items()}
    names = ["logits", *(f"next_{name}" for name in state)]
    passes = {}
    if any(entry.name == "passes" for entry in sessions["prefill"].get_inputs()):
        # A graph limits the number of passes to that of its model, which is the default.
        passes["passes"] = np.full(count, MOST_PASSES)
    for start in range(0, tokens.shape[1] - piece + 1, piece):
        inputs = {
            "tokens": tokens[:, start : start + piece],
            "length": np.full(count, piece),
            "position": np.full(count, start),
            **passes,
            **state,
        }
        logits, *parts = sessions["prefill"].run(names, inputs)
        state = dict(zip(state, parts, strict=True))
        yield start + piece, logits


def _attention(
    tokens: Windows, piece: int, sessions: Mapping[str, ReadableGraph], weights: Mapping[str, NDArray[Any]]
) -> Read:
    """Yield the number of processed tokens and the last logits `[windows, V]` after each piece of tokens in attention
    mode."""
    sizes = {entry.name: entry.shape for entry in sessions["attention"].get_inputs()}
    _, layers, heads, _, width = sizes["keys"]
    keys = np.zeros((len(tokens), layers, heads, tokens.shape[1], width), np.float32)
    values = keys.copy()
    silent = np.zeros((len(tokens), *sizes["noise"][1:]), np.float32)
    for start in range(0, tokens.shape[1] - piece + 1, piece):
        end = start + piece
        inputs = {
            "tokens": tokens[:, start:end],
            "position": np.full(len(tokens), start),
            "keys": keys,
            "values": values,
            "noise": silent,
        }
        logits, new_keys, new_values = sessions["attention"].run(["logits", "new_keys", "new_values"], inputs)
        keys[..., start:end, :], values[..., start:end, :] = new_keys, new_values
        yield end, logits
