"""Batches of synthetic series for training, made by processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from rfa.training.synthetic.mixture import draw


class Series(NamedTuple):
    """rows `[B, N]`, times from the first on in usual steps, float64; values `[B, N]`, float32, each series in units of
    its own deviation, 0 where missing; is_seen `[B, N]`."""

    rows: Tensor
    values: Tensor
    is_seen: Tensor


class _Batches(IterableDataset[Series]):
    def __init__(self, seed: int, count: int, length: int, first: int) -> None:
        super().__init__()
        self._asked, self._first = (seed, count, length), first

    def __iter__(self) -> Iterator[Series]:
        # Each of W workers makes every W-th batch, and the loader takes them in turn.
        info = get_worker_info()
        index = self._first + (0 if info is None else info.id)
        while True:
            yield batch(*self._asked, index=index)
            index += 1 if info is None else info.num_workers


def batch(seed: int, count: int, length: int, *, index: int) -> Series:
    """Batch `index` of a seed, as a network takes it."""
    drawn = draw(seed, count, length, index=index)
    is_seen = np.isfinite(drawn.values)
    values = np.where(is_seen, drawn.values, 0.0)
    seen = np.maximum(is_seen.sum(axis=1, keepdims=True), 1)
    middle = values.sum(axis=1, keepdims=True) / seen
    spread = np.sqrt((np.where(is_seen, values - middle, 0.0) ** 2).sum(axis=1, keepdims=True) / seen)
    # float32 has seven digits: what is far from 0 is brought near it, though no nearer than it was in deviations.
    unit = np.where(spread > 1e-9 * np.abs(middle), spread, np.maximum(np.abs(middle), 1e-30))
    rows = (drawn.times - drawn.times[:, :1]) / drawn.step[:, None]
    return Series(
        torch.from_numpy(rows), torch.from_numpy((values / unit).astype(np.float32)), torch.from_numpy(is_seen)
    )


def feed(seed: int, count: int, length: int = 1_088, *, first: int = 0, workers: int = 0) -> Iterator[Series]:
    """Batches `first`, first + 1, … of a seed without end: the same whatever the number of workers.

    Args:
        count, length: series of a batch, and values of each.
        workers: processes that draw; 0 is this one.
    """
    loader: DataLoader[Series] = DataLoader(_Batches(seed, count, length, first), batch_size=None, num_workers=workers)
    return iter(loader)


__all__ = ["Series", "batch", "feed"]
