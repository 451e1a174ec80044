"""Configuration of the series network (`rfa.model.series`). It has no graphs, because its steps are compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rfa.runtime.bundle.documents import Strict
from rfa.runtime.bundle.families.arrays import AnyArray, ArrayRule, Rules
from rfa.runtime.bundle.families.base import FamilyConfig, GraphRule, spec
from rfa.runtime.bundle.families.language import LanguageConfig
from rfa.runtime.bundle.manifest import GraphSpec, Kind, TensorSpec

# Constants of the architecture (`rfa.runtime.series.config`, `rfa.runtime.series.leads`).
FEATURES, ASKED, QUANTILES, PATHS = 319, 34, 15, 23
NETWORK = "network"
MATRIX_DTYPES = ("float16", "float32")
Panels = Annotated[int, Field(ge=32, le=4_096, multiple_of=32)]


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a parameter of the network is a matrix of a product. Bundles may contain these in float16."""
    return len(shape) == 2 and name.endswith("weight")


class SeriesCalibration(Strict):
    """Coverage of the network's intervals on held-out synthetic series."""

    summary: Annotated[dict[str, Any], Field(max_length=64)]


class SeriesBundleConfig(FamilyConfig):
    """Configuration of the series network. See `rfa.runtime.series.config.SeriesBundleConfig`."""

    kind: ClassVar[Kind] = "series"
    calibration = SeriesCalibration

    d_model: Panels = 128
    n_layers: Annotated[int, Field(ge=1, le=64)] = 3
    n_heads: Annotated[int, Field(ge=1, le=4_096)] = 4
    head_dim: Annotated[int, Field(ge=2, le=4_096, multiple_of=2)] = 16
    n_slots: Annotated[int, Field(ge=1, le=4_096)] = 8
    mlp_ratio: Annotated[int, Field(ge=1, le=64)] = 4
    embedding_width: Panels = 256
    head_width: Panels = 192
    head_inner: Panels = 64
    # Confidence gates can be trained, but are not supported here.
    confidence: Literal["none"] = "none"

    def _blocks(self) -> LanguageConfig:
        """Return the configuration of a language model with the same blocks."""
        sizes = {name: getattr(self, name) for name in ("d_model", "n_layers", "n_heads", "head_dim", "mlp_ratio")}
        return LanguageConfig(vocab_size=1, own_readout=True, n_slots=self.n_slots, **sizes)

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Rules:
        of_blocks = self._blocks().weights(shapes)
        blocks = {name: rule for name, rule in of_blocks.items() if name.startswith(("blocks.", "norm."))}
        d, wide, head, inner = self.d_model, self.embedding_width, self.head_width, self.head_inner
        own: dict[str, tuple[int, ...]] = {
            "embedding.0.weight": (wide, FEATURES), "embedding.0.bias": (wide,),
            "embedding.2.weight": (d, wide), "embedding.2.bias": (d,),
            "head.state.weight": (head, d), "head.state.bias": (head,), "head.asked.weight": (head, ASKED),
            "head.inner.weight": (inner, head), "head.inner.bias": (inner,),
            "head.out.weight": (QUANTILES, inner), "head.out.bias": (QUANTILES,),
            "head.follow.weight": (PATHS, d), "head.follow.bias": (PATHS,),
        }  # fmt: skip
        rules = {**blocks, **{name: ArrayRule(shape) for name, shape in own.items()}}
        return {
            name: replace(rule, dtypes=MATRIX_DTYPES) if is_matrix(name, rule.shape) else rule
            for name, rule in rules.items()
        }

    def derived(self, weights: Mapping[str, AnyArray]) -> Rules:
        return {}

    def state(self) -> tuple[TensorSpec, ...]:
        """Return the tensors of the memory slots. The runtime adds other parts of the state. See `FamilyConfig`."""
        return self._blocks().state()

    def graphs(self) -> dict[str, GraphRule]:
        return {}

    def golden(self, graphs: Mapping[str, GraphSpec]) -> Mapping[str, GraphSpec]:
        """Return the interface that processes one stream token by token, and computes several queries after each token.
        See `FamilyConfig`."""
        takes = (
            spec("tokens", "length", FEATURES), spec("lags", "length", dtype="int64"),
            spec("asked", "length", "leads", ASKED),
        )  # fmt: skip
        return {NETWORK: GraphSpec(NETWORK, takes, (spec("quantiles", "length", "leads", QUANTILES),), ())}
