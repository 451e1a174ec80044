"""Train one model with several processes (`torchrun`). Each process trains on its own rows of every batch.

    torchrun --nproc-per-node 2 -m rfa train lm …

Gradients are averaged after every step, so all processes have the same weights. Process 0 writes the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Processes:
    """The processes that train a model, from the point of view of one of them. It is identified by its index."""

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def rows(self, batch: Tensor) -> Tensor:
        """Return the rows of a batch that belong to this process."""
        return batch[self.rank :: self.count]

    def average(self, module: nn.Module) -> None:
        """Replace the gradients of a module by their means over all processes."""
        if self.count == 1:
            return
        gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(joined)
        joined /= self.count
        for gradient, part in zip(gradients, joined.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def shard(self, module: nn.Module) -> None:
        """Distribute the weights of a module, their gradients and their moments over the processes (FSDP2). The forward
        and backward passes gather the weights, and the backward pass averages the gradients."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        device = next(module.parameters()).device.type
        fully_shard(module, mesh=init_device_mesh(device, (self.count,)), reshard_after_forward=True)

    def mean(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return the mean of each number over the processes."""
        if self.count == 1:
            return numbers
        values = torch.tensor(list(numbers.values()), dtype=torch.float64)
        dist.all_reduce(values)
        return dict(zip(numbers, (values / self.count).tolist(), strict=True))

    def largest(self, number: int) -> int:
        """Return the largest value of a number over the processes. It is used for signals, which only one process may
        receive."""
        if self.count == 1:
            return number
        value = torch.tensor([number])
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return int(value)

    def wait(self) -> None:
        """Wait until all processes have reached this call."""
        if self.count > 1:
            dist.barrier()


ALONE = Processes()


def gathered(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the complete tensors. Tensors may be sharded over the processes, so all processes must call this."""
    return {name: part.full_tensor() if is_part(part) else part for name, part in tensors.items()}


def is_part(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor, of which this process stores only a part. The class is not imported,
    because the import takes a second."""
    return hasattr(tensor, "full_tensor")


def part_like(whole: Tensor, parameter: Any) -> Tensor:
    """Return the part of a tensor that corresponds to this process's part of a parameter."""
    if not is_part(parameter) or not whole.dim():
        return whole.to(parameter.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(parameter.device), parameter.device_mesh, parameter.placements)


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Connect the processes that torchrun has started, with the backend Gloo, for the duration of a context. Without
    torchrun, there is a single process."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    dist.init_process_group("gloo")
    try:
        yield Processes(dist.get_rank(), count)
    finally:
        dist.destroy_process_group()
