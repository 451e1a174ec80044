"""Base classes of families."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

from pydantic import BaseModel, model_validator

from rfa.runtime.bundle.documents import Strict
from rfa.runtime.bundle.families.arrays import AnyArray, Rules
from rfa.runtime.bundle.manifest import Dtype, GraphSpec, Kind, TensorSpec

# Upper bound of the state of one stream, because a server holds hundreds.
MAX_STATE_BYTES = 64 << 20


class GraphRule(NamedTuple):
    """The interface of a graph, in order. Inputs in `optional` may be missing."""

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
        """Return rules for model.safetensors. `shapes` of its arrays decide what the configuration leaves open.

        Raises:
            ValueError: The shapes are inconsistent.
        """

    @abstractmethod
    def derived(self, weights: Mapping[str, AnyArray]) -> Rules:
        """Return rules for values that follow from others or are bounded. `weights` have the right shapes.

        Raises:
            ValueError: The values are inconsistent.
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
        """Return rules for decoder.safetensors, or None if the family has no such file."""
        return None


def spec(name: str, *shape: int | str, dtype: Dtype = "float32") -> TensorSpec:
    """Return the rule of a tensor, by default of floats."""
    return TensorSpec(name, dtype, shape)


def batched(specs: Sequence[TensorSpec], prefix: str) -> list[TensorSpec]:
    """Return state tensors as inputs or outputs of a graph."""
    return [TensorSpec(f"{prefix}{part.name}", part.dtype, ("batch", *part.shape)) for part in specs]


def size(found: Sequence[TensorSpec]) -> int:
    """Return the size of float32 tensors of fixed shape in bytes."""
    total = 0
    for part in found:
        count = 4
        for dim in part.shape:
            count *= int(dim)
        total += count
    return total
