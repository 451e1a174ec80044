"""Batches of synthetic series for training, made by processes of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from rfa.training.synthetic.mixture import Split, draw

# Batches that each process has ready.
AHEAD = 4


class Series(NamedTuple):
    """Series as a network takes them.

    Args:
        rows: `[B, N]` float64, times from the first on in nominal steps.
        values: `[B, N]` float32, each series in units of its own deviation, as far from 0 as it was; 0 where missing.
        is_seen: `[B, N]` whether there is a value.
    """

    rows: Tensor
    values: Tensor
    is_seen: Tensor


class _Batches(IterableDataset[Series]):
    """Of W processes each makes every W-th batch, and the loader takes from them in turn."""

    def __init__(self, seed: int, count: int, length: int, first: int, split: Split) -> None:
        super().__init__()
        self._asked, self._first, self._split = (seed, count, length), first, split

    def __iter__(self) -> Iterator[Series]:
        worker = get_worker_info()
        begin, every = (self._first + worker.id, worker.num_workers) if worker else (self._first, 1)
        for index in itertools.count(begin, every):
            yield batch(*self._asked, index=index, split=self._split)


def batch(seed: int, count: int, length: int = 1088, *, index: int = 0, split: Split = "training") -> Series:
    """Batch `index` of a seed."""
    drawn = draw(seed, count, length, index=index, split=split)
    is_seen = np.isfinite(drawn.values)
    seen = np.ma.masked_invalid(drawn.values)
    spread = seen.std(axis=1, keepdims=True).filled(0.0)
    # Where nothing varies the value itself is the unit.
    size = np.abs(seen).max(axis=1, keepdims=True).filled(0.0)
    unit = np.where(spread > 1e-9 * size, spread, np.where(size > 0, size, 1.0))
    values = np.where(is_seen, drawn.values, 0.0) / unit
    rows = (drawn.times - drawn.times[:, :1]) / drawn.step[:, None]
    return Series(torch.from_numpy(rows), torch.from_numpy(values.astype(np.float32)), torch.from_numpy(is_seen))


def feed(
    seed: int, count: int, length: int = 1088, *, first: int = 0, workers: int = 0, split: Split = "training"
) -> Iterator[Series]:
    """Batches `first`, first + 1, … of a seed without end: the same ones whatever the number of workers.

    Args:
        seed, count, length, split: as of `draw`.
        first: 0, or how many a training that goes on has taken.
        workers: processes that draw; 0 is this one.
    """
    loader: DataLoader[Series] = DataLoader(
        _Batches(seed, count, length, first, split),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
    )
    return iter(loader)
