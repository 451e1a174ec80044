"""The parts that every family declares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from pydantic import BaseModel

from rfa.runtime.bundle.documents import Strict
from rfa.runtime.bundle.families.arrays import AnyArray, Rules
from rfa.runtime.bundle.manifest import Dtype, GraphSpec, Kind, TensorSpec

# Bytes of the state of one stream; a server keeps room for hundreds.
MAX_STATE_BYTES = 64 << 20


class GraphRule(NamedTuple):
    """The interface of a graph, in order; inputs in `optional` may be missing, where a graph has no use for them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    optional: frozenset[str] = frozenset()


class FamilyConfig(Strict):
    """The configuration of a model, and what a bundle of it holds."""

    kind: ClassVar[Kind]
    calibration: ClassVar[type[BaseModel]]

    @abstractmethod
    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Rules:
        """The arrays of model.safetensors. What is there, `shapes`, tells forms apart that the configuration does not.

        Raises:
            ValueError: it is of no form.
        """

    @abstractmethod
    def derived(self, weights: Mapping[str, AnyArray]) -> Rules:
        """Those of them that follow from others or must be more than finite; `weights` have the right shapes.

        Raises:
            ValueError: they do not fit each other.
        """

    @abstractmethod
    def state(self) -> tuple[TensorSpec, ...]:
        """What the recurrence carries."""

    @abstractmethod
    def graphs(self) -> dict[str, GraphRule]:
        """The graphs, by name."""

    def golden(self, graphs: Mapping[str, GraphSpec]) -> Mapping[str, GraphSpec]:
        """What golden outputs are of: the graphs of the bundle, or what else it is run as."""
        return graphs

    def constants(self, weights: Mapping[str, AnyArray]) -> Rules | None:
        """The arrays of decoder.safetensors; None where the family has no such file."""
        return None


def spec(name: str, *shape: int | str, dtype: Dtype = "float32") -> TensorSpec:
    """A float tensor unless said otherwise."""
    return TensorSpec(name, dtype, shape)


def batched(specs: Sequence[TensorSpec], prefix: str) -> list[TensorSpec]:
    """State tensors as inputs or outputs of a graph."""
    return [TensorSpec(f"{prefix}{part.name}", part.dtype, ("batch", *part.shape)) for part in specs]


def size(found: Sequence[TensorSpec]) -> int:
    """Bytes of float32 tensors of fixed shape."""
    total = 0
    for part in found:
        count = 4
        for dim in part.shape:
            count *= int(dim)
        total += count
    return total
