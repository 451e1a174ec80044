"""What every family declares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

from pydantic import BaseModel, model_validator

from rfa.runtime.bundle.documents import Strict
from rfa.runtime.bundle.families.arrays import AnyArray, Rules
from rfa.runtime.bundle.manifest import Dtype, GraphSpec, Kind, TensorSpec

# State of one stream; a server holds hundreds.
MAX_STATE_BYTES = 64 << 20


class GraphRule(NamedTuple):
    """The interface of a graph, in order; inputs in `optional` may be missing."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    optional: frozenset[str] = frozenset()


class FamilyConfig(Strict):
    """The configuration of a model, and the content of its bundle."""

    kind: ClassVar[Kind]
    calibration: ClassVar[type[BaseModel]]

    @model_validator(mode="after")
    def _state_fits(self) -> Self:
        if size(self.state()) > MAX_STATE_BYTES:
            raise ValueError(f"the state of a stream would exceed {MAX_STATE_BYTES} bytes")
        return self

    @abstractmethod
    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Rules:
        """Rules for model.safetensors; `shapes` of its arrays decide what the configuration leaves open.

        Raises:
            ValueError: inconsistent shapes.
        """

    @abstractmethod
    def derived(self, weights: Mapping[str, AnyArray]) -> Rules:
        """Rules for values that follow from others or are bounded; `weights` have the right shapes.

        Raises:
            ValueError: inconsistent values.
        """

    @abstractmethod
    def state(self) -> tuple[TensorSpec, ...]:
        """State of the recurrence."""

    @abstractmethod
    def graphs(self) -> dict[str, GraphRule]:
        """Graphs by name."""

    def golden(self, graphs: Mapping[str, GraphSpec]) -> Mapping[str, GraphSpec]:
        """Interfaces that golden outputs run: the bundle's graphs, or those of compiled code."""
        return graphs

    def constants(self, weights: Mapping[str, AnyArray]) -> Rules | None:
        """Rules for decoder.safetensors; None if the family has no such file."""
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
