"""Base classes of model families."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Self

from pydantic import BaseModel, model_validator

from rfa.runtime.bundle.documents import Strict
from rfa.runtime.bundle.families.arrays import AnyArray, Rules
from rfa.runtime.bundle.manifest import Dtype, GraphSpec, Kind, TensorSpec

# Upper bound on the state of one stream, because a server holds hundreds of streams.
MAX_STATE_BYTES = 64 << 20


class GraphRule(NamedTuple):
    """Names and types of the inputs and outputs of a graph, in order. The inputs whose names are in `optional` may be
    missing."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    optional: frozenset[str] = frozenset()


class FamilyConfig(Strict):
    """Base class of the configuration of a model, which determines the content of its bundle."""

    kind: ClassVar[Kind]
    calibration: ClassVar[type[BaseModel]]

    @model_validator(mode="after")
    def _state_fits(self) -> Self:
        if size(self.state()) > MAX_STATE_BYTES:
            raise ValueError(f"the state of a stream would exceed {MAX_STATE_BYTES} bytes")
        return self

    @abstractmethod
    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Rules:
        """Return a mapping from names of arrays of model.safetensors to rules.

        Args:
            shapes: Shapes of the arrays. They determine sizes that the configuration leaves open.

        Raises:
            ValueError: If the shapes do not match each other.
        """

    @abstractmethod
    def derived(self, weights: Mapping[str, AnyArray]) -> Rules:
        """Return the rules for arrays of model.safetensors whose values are bounded or determined by other arrays.

        Args:
            weights: Arrays of model.safetensors, with correct shapes.

        Raises:
            ValueError: If the values contradict each other.
        """

    @abstractmethod
    def state(self) -> tuple[TensorSpec, ...]:
        """Return the names, dtypes and shapes of the tensors of the recurrent state."""

    @abstractmethod
    def graphs(self) -> dict[str, GraphRule]:
        """Return a mapping from names of graphs of the bundle to rules."""

    def golden(self, graphs: Mapping[str, GraphSpec]) -> Mapping[str, GraphSpec]:
        """Return a mapping from names of the graphs that the golden cases run to interfaces. For families whose steps
        are compiled, these are the interfaces of the compiled functions."""
        return graphs

    def constants(self, weights: Mapping[str, AnyArray]) -> Rules | None:
        """Return the rules for decoder.safetensors. Return None if the family does not use this file."""
        return None


def spec(name: str, *shape: int | str, dtype: Dtype = "float32") -> TensorSpec:
    """Return the specification of a tensor. The default dtype is float32."""
    return TensorSpec(name, dtype, shape)


def batched(specs: Sequence[TensorSpec], prefix: str) -> list[TensorSpec]:
    """Return state tensors as inputs or outputs of a graph. `prefix` is added to their names, and a batch dimension to
    their shapes."""
    return [TensorSpec(f"{prefix}{part.name}", part.dtype, ("batch", *part.shape)) for part in specs]


def size(found: Sequence[TensorSpec]) -> int:
    """Return the total size in bytes of float32 tensors with fixed shapes."""
    total = 0
    for part in found:
        count = 4
        for dim in part.shape:
            count *= int(dim)
        total += count
    return total
