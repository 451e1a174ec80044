"""Associative recall and copying, learned from random sequences.

Recall (MQAR: Arora et al., Zoology, arXiv 2312.04927): n pairs, filler, a marker, then every key in random order:

    k_1 v_1 … k_n v_n  (filler …)  |  k_π(1) … k_π(n)     →     v_π(1) … v_π(n)

With `joint` a pair is one token, k_1v_1 … k_nv_n. Copy: a random string, a marker, the string again. Word problems of
the groups A5 and S5: each token is one of two permutations that generate the group, and the answer at every token is
the product of the permutations so far, g_1 … g_n → g_1, g_1 g_2, …. A batch is a function of (seed, split, step). The
loss is the cross-entropy of the answers; sizes grow as they are learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig, Mode, StrictConfig
from rfa.training.optimiser import Optimiser, OptimiserConfig

Task = Literal["recall", "copy", "A5", "S5"]
Group = Literal["A5", "S5"]
Split = Literal["train", "test"]

# The vocabulary: symbols without meaning between pairs and queries, the marker, keys (also the alphabet of copied
# strings) and values.
N_FILLERS, N_KEYS, N_VALUES = 16, 128, 64
MARKER = N_FILLERS
FIRST_KEY = MARKER + 1
FIRST_VALUE = FIRST_KEY + N_KEYS
VOCABULARY = FIRST_VALUE + N_VALUES
# The last symbols, with joint pairs: each pair of one of the first keys and a value.
N_JOINT_KEYS = 32
JOINT_VOCABULARY = VOCABULARY + N_JOINT_KEYS * N_VALUES
# A cycle of three elements and one of five generate A5; a transposition and a cycle of five generate S5. Words of two
# symbols reach every element of the group, and are learned with fewer steps than words of all elements.
GENERATORS: dict[Group, tuple[tuple[int, ...], ...]] = {
    "A5": ((1, 2, 0, 3, 4), (1, 2, 3, 4, 0)),
    "S5": ((1, 0, 2, 3, 4), (1, 2, 3, 4, 0)),
}
# The accuracy of a guess.
CHANCE: dict[Task, float] = {"recall": 1 / N_VALUES, "copy": 1 / N_KEYS, "A5": 1 / 60, "S5": 1 / 120}
# Target of a position without an answer, which cross-entropy ignores.
NO_ANSWER = -100
SPLITS: tuple[Split, ...] = ("train", "test")


class Batch(NamedTuple):
    """tokens `[B, N]`, and targets `[B, N]`: the expected answer at a position, or NO_ANSWER."""

    tokens: Tensor
    targets: Tensor


def _generator(seed: int, split: Split, step: int) -> np.random.Generator:
    return np.random.default_rng([seed, SPLITS.index(split), step])


def recall_batch(
    seed: int,
    step: int,
    rows: int,
    pairs: int,
    *,
    keys: int = N_KEYS,
    filler: int = 0,
    joint: bool = False,
    split: Split = "train",
) -> Batch:
    """Return `rows` sequences of 3 · pairs (joint: 2 · pairs) + filler + 1 tokens, with keys from the first `keys`."""
    most = N_JOINT_KEYS if joint else N_KEYS
    if not 1 <= pairs <= keys <= most:
        raise ValueError(f"pairs and keys must be in 1 <= pairs <= keys <= {most}, got {pairs} and {keys}")
    draw = _generator(seed, split, step)
    chosen = FIRST_KEY + draw.random((rows, keys)).argsort(1)[:, :pairs]
    values = FIRST_VALUE + draw.integers(N_VALUES, size=(rows, pairs))
    order = draw.random((rows, pairs)).argsort(1)
    between = draw.integers(N_FILLERS, size=(rows, filler))
    if joint:
        written = VOCABULARY + (chosen - FIRST_KEY) * N_VALUES + (values - FIRST_VALUE)
    else:
        written = np.stack([chosen, values], 2).reshape(rows, 2 * pairs)
    queried = np.take_along_axis(chosen, order, 1)
    tokens = np.concatenate([written, between, np.full((rows, 1), MARKER), queried], 1)
    targets = np.full(tokens.shape, NO_ANSWER)
    targets[:, -pairs:] = np.take_along_axis(values, order, 1)
    return Batch(torch.from_numpy(tokens), torch.from_numpy(targets))


def copy_batch(seed: int, step: int, rows: int, length: int, *, split: Split = "train") -> Batch:
    """Return `rows` strings of `length` symbols, each with the marker and a copy of all but its last symbol."""
    if length < 1:
        raise ValueError(f"length must be >= 1, got {length}")
    string = FIRST_KEY + _generator(seed, split, step).integers(N_KEYS, size=(rows, length))
    tokens = np.concatenate([string, np.full((rows, 1), MARKER), string[:, :-1]], 1)
    targets = np.full(tokens.shape, NO_ANSWER)
    targets[:, length:] = string
    return Batch(torch.from_numpy(tokens), torch.from_numpy(targets))


@cache
def multiplication_table(group: Group) -> np.ndarray:
    """Return the product of elements i and j, first i and then j, `[G, G]`. Element 0 is the identity."""
    elements = _elements(group)
    index = {one: i for i, one in enumerate(elements)}
    return np.array([[index[tuple(b[k] for k in a)] for b in elements] for a in elements])


def _elements(group: Group) -> list[tuple[int, ...]]:
    return [one for one in permutations(range(5)) if group == "S5" or _is_even(one)]


def _is_even(permutation: tuple[int, ...]) -> bool:
    return sum(a > b for i, a in enumerate(permutation) for b in permutation[i + 1 :]) % 2 == 0


def word_batch(group: Group, seed: int, step: int, rows: int, length: int, *, split: Split = "train") -> Batch:
    """Return `rows` words of `length` generators as elements of the group, and the product of each prefix."""
    table, elements = multiplication_table(group), _elements(group)
    generators = np.array([elements.index(one) for one in GENERATORS[group]])
    word = generators[_generator(seed, split, step).integers(len(generators), size=(rows, length))]
    products = word.copy()
    for i in range(1, length):
        products[:, i] = table[products[:, i - 1], word[:, i]]
    return Batch(torch.from_numpy(word), torch.from_numpy(products))


@dataclass(frozen=True)
class RecallConfig(StrictConfig):
    """One training: the task, its sizes from easy to hard, and its length.

    tokens: per step. promote: accuracy at which the next size joins. max_filler: with two sizes or more, half of the
    recall batches have 1 … max_filler tokens between pairs and queries. stop: training ends when every size reaches it.
    gate_gain: factor on the slots' initial gates, without which slots are too alike to separate keys.
    """

    task: Task
    sizes: tuple[int, ...]
    steps: int = 3000
    tokens: int = 512
    keys: int = 64
    joint: bool = False
    max_filler: int = 32
    promote: float = 0.9
    stop: float = 0.9995
    gate_gain: float = 4.0
    learning_rate: float = 5e-3
    matrix_learning_rate: float = 1e-2
    sde_learning_rate: float = 5e-3
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))

    def optimiser(self) -> OptimiserConfig:
        """Return the optimiser of the default language model at the learning rates of this task."""
        return OptimiserConfig(
            steps=self.steps,
            optimiser="muon",
            schedule="wsd",
            learning_rate=self.learning_rate,
            matrix_learning_rate=self.matrix_learning_rate,
            sde_learning_rate=self.sde_learning_rate,
            weight_decay=0.01,
            beta2=0.95,
            sde_clip=1.0,
        )


@dataclass(frozen=True)
class Trained:
    """A model in its training mode, with the number of steps and the sizes it was trained on."""

    model: LanguageModel
    steps: int
    sizes: tuple[int, ...]


class Curriculum:
    """The trained sizes: the first at the start, and one more each time the hardest of them is learned."""

    # Weight of the newest batch in the running accuracy of a size.
    UPDATE = 0.1

    def __init__(self, config: RecallConfig) -> None:
        self.config = config
        self.accuracy = dict.fromkeys(config.sizes, 0.0)
        self.open = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.config.sizes[: self.open]

    def record(self, size: int, accuracy: float) -> None:
        """Record the accuracy of a batch of a size. Adds the next size if the hardest is learned."""
        self.accuracy[size] += self.UPDATE * (accuracy - self.accuracy[size])
        if self.accuracy[self.sizes[-1]] >= self.config.promote:
            self.open = min(self.open + 1, len(self.config.sizes))

    @property
    def is_done(self) -> bool:
        return min(self.accuracy.values()) >= self.config.stop


def training_batch(config: RecallConfig, step: int, sizes: tuple[int, ...]) -> tuple[Batch, int]:
    """Return the batch of a step and its size. Half of the steps train the hardest size so far."""
    draw = np.random.default_rng([config.seed, len(SPLITS), step])
    size = sizes[-1] if draw.random() < 0.5 else sizes[draw.integers(len(sizes))]
    if config.task in ("A5", "S5"):
        return word_batch(config.task, config.seed, step, max(1, config.tokens // size), size), size
    if config.task == "copy":
        return copy_batch(config.seed, step, max(1, config.tokens // (2 * size)), size), size
    is_filled = config.max_filler > 0 and len(sizes) > 1 and draw.random() < 0.5
    filler = int(draw.integers(1, config.max_filler + 1)) if is_filled else 0
    rows = max(1, config.tokens // ((2 if config.joint else 3) * size + filler + 1))
    return recall_batch(config.seed, step, rows, size, keys=config.keys, filler=filler, joint=config.joint), size


def answers(model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return logits `[A, V]` and targets `[A]` of the answers of a batch, row by row."""
    logits = model(batch.tokens, with_precision=False).logits
    queried = batch.targets != NO_ANSWER
    return logits[queried].float(), batch.targets[queried]


def train_recall(
    model_config: LanguageModelConfig,
    config: RecallConfig,
    mode: Mode,
    *,
    visit: Callable[[int, Curriculum, float], None] | None = None,
) -> Trained:
    """Train a model on a task in one mode. `visit` gets the step, the curriculum and the loss."""
    torch.manual_seed(config.seed)
    model = LanguageModel(model_config)
    model.mode = mode
    _steepen_gates(model, config.gate_gain)
    steps, sizes = train_on_task(model, config, visit)
    return Trained(model.eval(), steps, sizes)


def train_on_task(
    model: LanguageModel, config: RecallConfig, visit: Callable[[int, Curriculum, float], None] | None = None
) -> tuple[int, tuple[int, ...]]:
    """Train a model on a task. Return the number of steps and the trained sizes."""
    optimiser = Optimiser(model, config.optimiser())
    curriculum = Curriculum(config)
    step = 0
    while step < config.steps and not curriculum.is_done:
        batch, size = training_batch(config, step, curriculum.sizes)
        optimiser.zero_grad()
        logits, targets = answers(model, batch)
        loss = F.cross_entropy(logits, targets)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss is {value} at step {step}")
        loss.backward()
        optimiser.step(step)
        step += 1
        curriculum.record(size, float((logits.argmax(-1) == targets).float().mean()))
        if visit is not None:
            visit(step, curriculum, value)
    return step, curriculum.sizes


@torch.no_grad()
def _steepen_gates(model: LanguageModel, gain: float) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith(".gates.weight"):
            parameter.mul_(gain)
