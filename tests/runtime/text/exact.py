"""Language runtimes under test: streams of them, and the same model in float64 throughout."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rfa.model.dynamics import wrapped_phase
from rfa.model.language import LanguageModel
from rfa.model.layers import RobustMixer
from rfa.model.loading import load_model
from rfa.runtime.text.contexts import StepOutput

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness"
EPS = float(np.finfo(np.float32).eps)


def silence(runtime: Any, rows: int = 1) -> np.ndarray:
    return np.zeros((rows, *runtime.latent_shape), dtype=np.float32)


def prompt_of(runtime: Any) -> list[int]:
    tokens: list[int] = runtime.vocabulary.encode(TEXT)
    return tokens


def begun(
    runtime: Any, tokens: Sequence[int], mode: Any = "recurrent", position: int = 0, passes: int | None = None
) -> Any:
    """A stream that has read these tokens, the first of them at a position."""
    context = runtime.start(mode, passes=passes)
    context.position = position
    if tokens:
        advance = read_on(runtime, context, tokens)
        assert advance.is_finite()
        advance.commit()
    return context


def read_on(runtime: Any, context: Any, tokens: Sequence[int]) -> Any:
    """A stream after some tokens more."""
    (advance,) = runtime.prefill([context], [tokens])
    return advance


def stepped(runtime: Any, context: Any, tokens: Sequence[int], noise: np.ndarray | None = None) -> list[StepOutput]:
    outputs = []
    for token in tokens:
        output, (advance,) = runtime.step([context], [token], silence(runtime) if noise is None else noise)
        assert advance.is_finite()
        advance.commit()
        outputs.append(output)
    return outputs


def crowd(runtime: Any, count: int) -> list[Any]:
    """Streams that have read different tokens, at different positions."""
    tokens = prompt_of(runtime)
    return [begun(runtime, tokens[index : index + 3 + index], position=1000 * index) for index in range(count)]


def check_company(
    runtime: Any, alone: Sequence[Any], together: Sequence[Any], order: Sequence[int], tokens: Sequence[int], noise: Any
) -> None:
    """A step of streams together, in some order, has the bits of a step of each alone."""
    output, advances = runtime.step([together[i] for i in order], [tokens[i] for i in order], noise[list(order)])
    for row, index in enumerate(order):
        single, (advance,) = runtime.step([alone[index]], [tokens[index]], noise[index : index + 1])
        for found, expected in zip(output, single, strict=True):
            assert found[row].tobytes() == expected[0].tobytes()
        advance.commit()
        advances[row].commit()
        assert runtime.pack(alone[index]) == runtime.pack(together[index])


@functools.cache
def _exact(path: Path) -> LanguageModel:
    return load_model(path).double()


class ExactModel:
    """The model in float64 throughout: what it casts to float32 stays as it is."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = _exact(path)
        self._patch = monkeypatch

    def outputs(self, tokens: Sequence[int], read: int, position: int, mode: str, noise: np.ndarray) -> list[Any]:
        """Of every token after the first `read` ones."""
        with self._patch.context() as patch, torch.no_grad():
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            patch.setattr(
                RobustMixer, "phase", lambda mixer, at: wrapped_phase(mixer.dynamics.omega, at, torch.float64)
            )
            row, sample = torch.tensor([list(tokens)]), torch.from_numpy(noise).double()
            return self._attend(row, read, sample) if mode == "attention" else self._step(row, read, position, sample)

    def _step(self, row: torch.Tensor, read: int, position: int, noise: torch.Tensor) -> list[Any]:
        state = self.model.init_state(1)._replace(position=torch.tensor([position]))
        outputs = []
        for index in range(row.shape[1]):
            output, state = self.model.step(row[:, index], state, noise)
            outputs.append(output)
        self.state = [part[0].numpy() for part in state[:2]]
        return outputs[read:]

    def _attend(self, row: torch.Tensor, read: int, noise: torch.Tensor) -> list[Any]:
        empty = self.model.init_cache(1, 0)
        return [
            self.model.extend(row[:, : end + 1], empty._replace(keys=empty.keys.double()), noise)[0]
            for end in range(read, row.shape[1])
        ]


def largest_errors(found: Sequence[Any], exact: Sequence[Any]) -> dict[str, float]:
    """Largest difference of each output, in units of its largest magnitude."""
    errors = {}
    for name in StepOutput._fields:
        a, b = (np.stack([np.asarray(getattr(output, name), np.float64) for output in side]) for side in (found, exact))
        assert a.shape == b.shape
        errors[name] = float(np.abs(a - b).max() / np.abs(b).max())
    return errors
