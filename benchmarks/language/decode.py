"""Cost per token on one CPU thread: the recurrence at position 100 and 100,000, the cache at 512 and 4,096.

The recurrent stream runs to each position. Then the cases alternate in one process; figures are medians. First, both
positions must give the same distribution from the same state.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rfa.measured import origin, write_result
from rfa.runtime.bundle.bundle import Bundle, open_bundle

RECURRENT_POSITIONS = (100, 100_000)
CACHE_LENGTHS = (512, 4096)
ROUNDS = 60
STEPS_PER_ROUND = 20


@dataclass
class RecurrentStream:
    """One stream on the step graph. `advance` feeds back the most likely token without sampling."""

    session: Any
    means: np.ndarray
    precisions: np.ndarray
    noise: np.ndarray
    passes: dict[str, np.ndarray]  # input of a model with several numbers of reweighting passes
    token: int = 1
    position: int = 0

    def advance(self) -> np.ndarray:
        logits, _, _, self.means, self.precisions = self.session.run(
            ["logits", "log_precision", "latent", "next_means", "next_precisions"],
            {
                "token": np.array([self.token]),
                "position": np.array([self.position]),
                "noise": self.noise,
                **self.passes,
                "means": self.means,
                "precisions": self.precisions,
            },
        )
        self.token = int(logits[0].argmax())
        self.position += 1
        return logits[0]

    def copy(self) -> RecurrentStream:
        return RecurrentStream(
            self.session, self.means.copy(), self.precisions.copy(), self.noise, self.passes, self.token, self.position
        )


@dataclass
class CachedStream:
    """Decodes a token over a cache of fixed size. The position stays the same, so every step costs the same."""

    session: Any
    keys: np.ndarray
    values: np.ndarray
    noise: np.ndarray
    position: int

    def advance(self) -> np.ndarray:
        logits, _, _, new_keys, new_values = self.session.run(
            ["logits", "log_precision", "latent", "new_keys", "new_values"],
            {
                "tokens": np.array([[1]]),
                "position": np.array([self.position]),
                "keys": self.keys,
                "values": self.values,
                "noise": self.noise,
            },
        )
        # As the caller of a step does, store the new row in the fixed cache.
        self.keys[:, :, :, self.position : self.position + 1] = new_keys
        self.values[:, :, :, self.position : self.position + 1] = new_values
        return np.asarray(logits[0])


def _noise(bundle: Bundle) -> np.ndarray:
    config = bundle.config
    return np.zeros((1, config["n_heads"], 2 * config["head_dim"]), np.float32)


def start_recurrent(bundle: Bundle) -> RecurrentStream:
    """Return a stream before its first token."""
    weights, config = bundle.weights(), bundle.language
    passes = {"passes": np.array([config.inner])} if config.takes_passes() else {}
    return RecurrentStream(
        bundle.session("step"),
        weights["initial.means"][None],
        weights["initial.precisions"][None],
        _noise(bundle),
        passes,
    )


def start_cached(bundle: Bundle, length: int) -> CachedStream:
    """Return a stream whose cache holds `length` - 1 random tokens, filled through the graph itself."""
    config = bundle.config
    session = bundle.session("attention")
    shape = (1, config["n_layers"], config["n_heads"], length, 2 * config["head_dim"])
    stream = CachedStream(session, np.zeros(shape, np.float32), np.zeros(shape, np.float32), _noise(bundle), 0)
    ids = np.random.default_rng(0).integers(1, config["vocab_size"], (1, length - 1))
    for start in range(0, length - 1, 256):
        part = ids[:, start : start + 256]
        *_, keys, values = session.run(
            ["logits", "new_keys", "new_values"],
            {
                "tokens": part,
                "position": np.array([start]),
                "keys": stream.keys,
                "values": stream.values,
                "noise": stream.noise,
            },
        )
        stream.keys[:, :, :, start : start + part.shape[1]] = keys
        stream.values[:, :, :, start : start + part.shape[1]] = values
    stream.position = length - 1
    return stream


def check_position_independence(near: RecurrentStream, far: RecurrentStream) -> float:
    """Return the largest difference of log-probabilities from the same state at both positions."""
    distributions = []
    for position in (near.position, far.position):
        stream = near.copy()
        # A zero state has no phase of its own, so only relative rotations affect the next token.
        stream.means, stream.position, stream.token = stream.means * 0, position, 1
        stream.advance()
        stream.token = 2
        logits = stream.advance()
        distributions.append(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
    difference = float(np.abs(distributions[0] - distributions[1]).max())
    if not difference <= 1e-3:
        raise AssertionError(
            f"positions {near.position} and {far.position} differ by {difference:.1e} in log-probability"
        )
    return difference


def run_decode(bundle_path: Path) -> dict[str, Any]:
    """Measure a language bundle, and return the document that `write_decode` stores."""
    bundle = open_bundle(bundle_path)
    stream = start_recurrent(bundle)
    cases: dict[str, RecurrentStream | CachedStream] = {}
    with tqdm(total=RECURRENT_POSITIONS[-1], desc="stream to the far position") as bar:
        for position in RECURRENT_POSITIONS:
            while stream.position < position:
                stream.advance()
                bar.update()
            cases[f"recurrent at {position}"] = stream.copy()
    near, far = (cases[f"recurrent at {position}"] for position in RECURRENT_POSITIONS)
    if not isinstance(near, RecurrentStream) or not isinstance(far, RecurrentStream):
        raise TypeError("the recurrent cases must be recurrent streams")
    difference = check_position_independence(near, far)
    for length in CACHE_LENGTHS:
        cases[f"cache of {length}"] = start_cached(bundle, length)
    samples: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    for round_index in tqdm(range(ROUNDS), desc="timed rounds"):
        # Rotated, so that no case always follows the most expensive one.
        for name in order[round_index % len(order) :] + order[: round_index % len(order)]:
            case = cases[name]
            case.advance()
            started = time.perf_counter()
            for _ in range(STEPS_PER_ROUND):
                case.advance()
            samples[name].append((time.perf_counter() - started) / STEPS_PER_ROUND)
    rows = {
        name: {
            "median_us": round(1e6 * float(np.median(times)), 1),
            "p20_us": round(1e6 * float(np.quantile(times, 0.2)), 1),
            "p80_us": round(1e6 * float(np.quantile(times, 0.8)), 1),
        }
        for name, times in samples.items()
    }
    first, last = (rows[f"recurrent at {position}"]["median_us"] for position in RECURRENT_POSITIONS)
    return {
        "bundle": bundle.name,
        "digest": bundle.digest,
        **origin("rfa bench decode"),
        "threads": 1,
        "tokens_per_sample": STEPS_PER_ROUND,
        "rounds": ROUNDS,
        "position_difference": difference,
        "cases": rows,
        "far_over_near": round(last / first, 4),
    }


def write_decode(bundle_path: Path, out: Path) -> dict[str, Any]:
    """Write the document of `run_decode` to a JSON file."""
    document = run_decode(bundle_path)
    write_result(out, document)
    return document
