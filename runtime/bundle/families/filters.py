"""Configurations of filters: linear systems and deep filters (`rfa.model.linear_filter`, `rfa.model.deep_filter`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rfa.runtime.bundle.calibration_document import FilterCalibration
from rfa.runtime.bundle.families.arrays import ROUNDING, TOLERANCE, AnyArray, ArrayRule, Rules
from rfa.runtime.bundle.families.base import FamilyConfig, GraphRule, batched, spec
from rfa.runtime.bundle.manifest import GraphSpec, Kind, TensorSpec

# Relative tolerance for numbers of the configuration that are rounded to float32.
EXACT = 1e-6
MAX_SIZE = 256
MAX_TERMS, MAX_NODES = 8, 64
NOISE_LAWS = 7  # number of noise factors in `rfa.model.recurrence.dense`
FLOOR = 1e-6

Number = Annotated[float, Field(ge=-1e12, le=1e12)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=MAX_SIZE)]
Matrix = Annotated[list[Vector], Field(min_length=1, max_length=MAX_SIZE)]
Freedom = Annotated[float, Field(gt=2, le=1e12)] | None
Passes = Annotated[int, Field(ge=1, le=64)]
Share = Annotated[float, Field(ge=0, lt=1)]
OutlierScale = Annotated[float, Field(gt=1, le=1e6)]


class FilterConfig(FamilyConfig):
    """Base class of the configurations of filters. It declares the interface of a step."""

    kind: ClassVar[Kind] = "filter"
    modes: ClassVar[tuple[str, ...]] = ("recurrent",)
    calibration = FilterCalibration

    @property
    def passes(self) -> tuple[int, int]:
        """Smallest and largest number of reweighting passes K. The largest number is the default."""
        most: int = self.inner  # type: ignore[attr-defined]  # a field of every family, each with its default
        return (1 if self.takes_passes() else most), most

    @property
    def sizes(self) -> tuple[int, int]:
        """Size P of the observation and size n of the state."""
        raise NotImplementedError

    def takes_passes(self) -> bool:
        """Return whether the number of passes K is an input of each observation."""
        return False

    def _token(self) -> tuple[TensorSpec, ...]:
        """Return the inputs of a step, without the state."""
        p, _ = self.sizes
        passes = (spec("passes", "batch"),) if self.takes_passes() else ()
        return (
            spec("observation", "batch", p), spec("present", "batch", p), spec("dt", "batch"),
            spec("noise_scale", "batch"), *passes,
        )  # fmt: skip

    def _step_outputs(self) -> tuple[TensorSpec, ...]:
        p, n = self.sizes
        return (
            spec("mean", "batch", p), spec("covariance", "batch", p, p), spec("precision", "batch"),
            spec("weight", "batch"), spec("innovation", "batch", p), spec("innovation_covariance", "batch", p, p),
            spec("nis", "batch"), spec("log_likelihood", "batch"), spec("transition", "batch", n, n),
            spec("predicted_mean", "batch", n), spec("predicted_covariance", "batch", n, n),
            *batched(self.state(), "next."),
        )  # fmt: skip

    def _forecast_outputs(self) -> tuple[TensorSpec, ...]:
        p, _ = self.sizes
        return spec("forecast_mean", "batch", "horizon", p), spec("forecast_covariance", "batch", "horizon", p, p)

    def _initial_shapes(self) -> dict[str, tuple[int, ...]]:
        p, n = self.sizes
        shapes = {f"initial.{part.name}": tuple(map(int, part.shape)) for part in self.state()}
        return {**shapes, "initial.readout_matrix": (p, n), "initial.readout_offset": (p,)}


class LinearConfig(FilterConfig):
    """Configuration of a linear filter. See `rfa.runtime.filters.linear_config.LinearFilterConfig`."""

    drift: Matrix
    process_noise: Matrix
    measurement_noise: Matrix
    observation: Matrix | None = None
    offset: Vector | None = None
    nu: Freedom = 7.0
    inner: Passes = 3
    initial_mean: Vector | None = None
    initial_covariance: Matrix | None = None
    contamination: Share = 0.0
    outlier_scale: OutlierScale = 10.0
    reacquire: Annotated[int, Field(ge=2, le=1_000_000)] | None = 6
    rule: Literal["capped", "learned"] = "capped"

    @model_validator(mode="after")
    def _matrices_fit(self) -> Self:
        p, n = self.sizes
        shapes: dict[str, tuple[int, ...]] = {
            "drift": (n, n), "process_noise": (n, n), "measurement_noise": (p, p), "observation": (p, n),
            "offset": (p,), "initial_mean": (n,), "initial_covariance": (n, n),
        }  # fmt: skip
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is not None and _shape(value) != shape:
                raise ValueError(f"{name} must have shape {list(shape)}")
        if self.observation is None and p != n:
            raise ValueError("observation is required if measurement_noise and drift have different sizes")
        return self

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.measurement_noise), len(self.drift)

    def state(self) -> tuple[TensorSpec, ...]:
        _, n = self.sizes
        parts = [spec("mean", n), spec("covariance", n, n)]
        if self.nu is not None and self.reacquire is not None:
            parts += [spec("jump_offset", n), spec("jump_evidence", 1)]
        if self._learns_noise:
            parts.append(spec("noise_counts", NOISE_LAWS))
        return tuple(parts)

    def takes_passes(self) -> bool:
        return self.nu is not None and not self._learns_noise and self.inner > 1

    @property
    def _learns_noise(self) -> bool:
        return self.nu is not None and self.rule == "learned"

    def graphs(self) -> dict[str, GraphRule]:
        """Return no graphs, because the step is compiled from the configuration. See `FamilyConfig`."""
        return {}

    def golden(self, graphs: Mapping[str, GraphSpec]) -> Mapping[str, GraphSpec]:
        """Return the interfaces of a step, and of the forecasts from the state after it. See `FamilyConfig`."""
        state = batched(self.state(), "state.")
        return {
            "step": GraphSpec("step", (*self._token(), *state), self._step_outputs(), ()),
            "forecast": GraphSpec("forecast", (spec("horizon", "horizon"), *state), self._forecast_outputs(), ()),
        }

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Rules:
        """See `FamilyConfig`. A drift matrix without an eigenbasis is stored as chains of modes."""
        p, n = self.sizes
        rules: dict[str, tuple[int, ...]] = {
            "matrix": (p, n), "offset": (p,), "noise": (p, p), "inverse_nu": (1,), "contamination": (1,),
            "outlier_scale": (1,), "prior_mean": (n,), "prior_covariance": (n, n), **self._initial_shapes(),
        }  # fmt: skip
        parts = self._chain_shapes(shapes) if "member" in shapes else {"rate": (n,), "noise": (n, n)}
        for end in ("re", "im"):
            rules |= {f"{name}_{end}": shape for name, shape in {"basis": (n, n), "dual": (n, n), **parts}.items()}
        if "member" in shapes:
            rules |= {"member": (n, *parts["rate"]), **{name: shapes[name] for name in ("nodes", "node_weights")}}
        if self._learns_noise:
            rules |= {"noise_factors": (NOISE_LAWS,), "prior_noise_counts": (NOISE_LAWS,)}
        return {name: ArrayRule(shape) for name, shape in rules.items()}

    def _chain_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shapes that depend on the numbers of nilpotent powers and of clusters. These numbers are
        properties of the drift matrix."""
        n = self.sizes[1]
        nodes, table = shapes.get("nodes", ()), shapes.get("node_weights", ())
        top = table[1] if len(table) == 2 else 0
        clusters = shapes["member"][-1] if shapes["member"] else 0
        if not (
            1 <= clusters <= n and top % 2 and top < 2 * MAX_TERMS and nodes == table[:1] and nodes <= (MAX_NODES,)
        ):
            raise ValueError("the shapes of member, nodes and node_weights do not match each other")
        return {"rate": (clusters,), "power": ((top + 1) // 2, n, n), "noise": (top, n, n)}

    def derived(self, weights: Mapping[str, AnyArray]) -> Rules:
        p, n = self.sizes
        self._check_drift(weights)
        matrix = np.eye(n) if self.observation is None else np.array(self.observation)
        offset = np.zeros(p) if self.offset is None else np.array(self.offset)
        mean = np.zeros(n) if self.initial_mean is None else np.array(self.initial_mean)
        covariance = None if self.initial_covariance is None else np.array(self.initial_covariance)
        prior = weights["prior_covariance"]
        rules = {
            "matrix": ArrayRule((p, n), value=matrix, tolerance=EXACT),
            "offset": ArrayRule((p,), value=offset, tolerance=EXACT),
            "noise": ArrayRule((p, p), value=np.array(self.measurement_noise), tolerance=EXACT, is_covariance=True),
            **_robustness(self.nu, self.contamination, self.outlier_scale),
            "prior_mean": ArrayRule((n,), value=mean, tolerance=EXACT),
            "prior_covariance": ArrayRule((n, n), value=covariance, tolerance=EXACT, is_covariance=True),
            "initial.mean": ArrayRule((n,), value=mean, tolerance=EXACT),
            "initial.covariance": ArrayRule((n, n), value=prior, tolerance=0.0),
            "initial.readout_matrix": ArrayRule((p, n), value=matrix, tolerance=EXACT),
            "initial.readout_offset": ArrayRule((p,), value=offset, tolerance=EXACT),
        }
        for name in ("jump_offset", "jump_evidence"):
            if f"initial.{name}" in weights:
                rules[f"initial.{name}"] = ArrayRule(weights[f"initial.{name}"].shape, value=0.0)
        if self._learns_noise:
            counts = weights["prior_noise_counts"]
            rules |= {
                "noise_factors": ArrayRule((NOISE_LAWS,), above=0.0, most=1e12),
                "prior_noise_counts": ArrayRule((NOISE_LAWS,), above=0.0, most=1e12),
                "initial.noise_counts": ArrayRule((NOISE_LAWS,), value=counts, tolerance=0.0),
            }
        return rules

    def _check_drift(self, weights: Mapping[str, AnyArray]) -> None:
        """Check that A = V (diag(rates) + nilpotent) V⁻¹ up to rounding. If modes are stored, also check the noise V⁻¹
        Q V⁻ᴴ."""
        parts = ("basis", "dual", "rate", "noise", *(["power"] if "member" in weights else []))
        found = {
            name: weights[f"{name}_re"].astype(np.float64) + 1j * weights[f"{name}_im"].astype(np.float64)
            for name in parts
        }
        rates, inner = found["rate"], 0.0
        if "member" in weights:
            rates = weights["member"].astype(np.float64) @ rates
            inner = found["power"][1] if len(found["power"]) > 1 else inner
        basis, dual = found["basis"], found["dual"]
        drift, process = np.array(self.drift), np.array(self.process_noise)
        amplified = float(np.linalg.norm(basis, 2) * np.linalg.norm(dual, 2))
        allowed = TOLERANCE + ROUNDING * amplified
        scale = max(float(np.abs(drift).max()), float(np.abs(rates).max(initial=0.0)))
        if np.abs(basis @ (np.diag(rates) + inner) @ dual - drift).max() > allowed * scale:
            raise ValueError("rates and basis do not reproduce the drift matrix")
        noise = found["noise"][0] if "member" in weights else found["noise"]
        formed = dual @ process @ dual.conj().T
        if np.abs(noise - formed).max() > allowed * np.abs(formed).max(initial=0.0):
            raise ValueError("noise differs from the process noise in the coordinates of the modes")


Span = Annotated[float, Field(gt=0, le=1e15)]
Width = Annotated[int, Field(ge=1, le=4_096)]


class DeepConfig(FilterConfig):
    """Configuration of a deep filter. See `rfa.model.deep_blocks.DeepFilterConfig`."""

    modes = ("attention", "recurrent")

    observation_size: Annotated[int, Field(ge=1, le=MAX_SIZE)]
    n_modes: Annotated[int, Field(ge=1, le=MAX_SIZE // 2)] = 1
    d_model: Width = 32
    n_layers: Annotated[int, Field(ge=1, le=64)] = 2
    n_heads: Width = 4
    head_dim: Annotated[int, Field(ge=2, le=4_096, multiple_of=2)] = 4
    mlp_ratio: Annotated[int, Field(ge=1, le=64)] = 2
    inner: Passes = 1
    time_unit: Span = 1.0
    memory: Annotated[list[Span], Field(min_length=2, max_length=2)] = Field(default_factory=lambda: [4.0, 256.0])

    @model_validator(mode="after")
    def _memory_ascends(self) -> Self:
        if self.memory[0] > self.memory[1]:
            raise ValueError("memory must be in ascending order")
        return self

    @property
    def sizes(self) -> tuple[int, int]:
        return self.observation_size, 2 * self.n_modes

    def state(self) -> tuple[TensorSpec, ...]:
        p, n = self.sizes
        heads = self.n_layers, self.n_heads
        return (
            spec("mean", n), spec("covariance", n, n), spec("nominal_mean", n), spec("nominal_covariance", n, n),
            spec("previous", p), spec("log_factors", 2), spec("block_means", *heads, 2 * self.head_dim),
            spec("block_precisions", *heads),
        )  # fmt: skip

    def cache_rows(self) -> tuple[TensorSpec, ...]:
        """Return the tensors that attention mode adds to its cache for an observation."""
        shape = self.n_layers, self.n_heads, 2 * self.head_dim
        return spec("keys", *shape), spec("values", *shape)

    def graphs(self) -> dict[str, GraphRule]:
        token, state = self._token(), batched(self.state(), "state.")
        pairs = spec("lag", "batch", "cache"), spec("valid", "batch", "cache")
        cache = [
            TensorSpec(f"cache.{row.name}", row.dtype, ("batch", "cache", *row.shape)) for row in self.cache_rows()
        ]
        rows = batched(self.cache_rows(), "row.")
        optional = frozenset(part.name for part in state)
        return {
            "step": GraphRule((*token, *state), self._step_outputs()),
            "prefill": GraphRule((*token, *pairs, *state, *cache), (*self._step_outputs(), *rows)),
            "forecast": GraphRule((spec("horizon", "horizon"), *state), self._forecast_outputs(), optional),
        }

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Rules:
        p, n = self.sizes
        d, one = self.d_model, (1,)
        rules: dict[str, tuple[int, ...]] = {
            "center": (p,), "scale": (p,), "decay_raw": (self.n_modes,), "omega": (self.n_modes,), "matrix": (p, n),
            "process_factor": (n, n), "noise_factor": (p, p), "prior_factor": (n, n), "nu_raw": one,
            "contamination_raw": one, "outlier_scale_raw": one, "embed.0.weight": (d, 4 * p + 2), "embed.0.bias": (d,),
            "embed.2.weight": (d, d), "embed.2.bias": (d,), "readout.0.weight": (d,), "readout.0.bias": (d,),
            "readout.1.weight": (2, d), "readout.1.bias": (2,), "initial_factors": (2,), **self._initial_shapes(),
        }  # fmt: skip
        for i in range(self.n_layers):
            rules |= {f"blocks.{i}.{name}": shape for name, shape in self._block().items()}
        return {name: ArrayRule(shape) for name, shape in rules.items()}

    def _block(self) -> dict[str, tuple[int, ...]]:
        d, heads, hidden = self.d_model, self.n_heads, self.mlp_ratio * self.d_model
        width = heads * 2 * self.head_dim
        raw = ("process", "eta2", "gamma2", "nu", "tau")
        return {
            **{f"dynamics.{name}_raw": (heads,) for name in raw},
            "norm.weight": (d,), "norm.bias": (d,), "query.weight": (width, d), "key.weight": (width, d),
            "value.weight": (width, d), "value.bias": (width,), "mix.weight": (d, width), "mix.bias": (d,),
            "feed_forward.0.weight": (d,), "feed_forward.0.bias": (d,), "feed_forward.1.weight": (hidden, d),
            "feed_forward.1.bias": (hidden,), "feed_forward.3.weight": (d, hidden), "feed_forward.3.bias": (d,),
        }  # fmt: skip

    def derived(self, weights: Mapping[str, AnyArray]) -> Rules:
        p, n = self.sizes
        factor, scale = weights["prior_factor"].astype(np.float64), weights["scale"].astype(np.float64)
        prior = ArrayRule((n, n), value=factor @ factor.T + FLOOR * np.eye(n), is_covariance=True)
        nothing = ("mean", "nominal_mean", "previous", "block_means", "block_precisions")
        return {
            "scale": ArrayRule((p,), above=0.0),
            "initial.covariance": prior,
            "initial.nominal_covariance": prior,
            "initial.log_factors": ArrayRule((2,), value=weights["initial_factors"], tolerance=0.0),
            "initial.readout_matrix": ArrayRule((p, n), value=scale[:, None] * weights["matrix"]),
            "initial.readout_offset": ArrayRule((p,), value=weights["center"], tolerance=0.0),
            **{f"initial.{name}": ArrayRule(weights[f"initial.{name}"].shape, value=0.0) for name in nothing},
        }


def _robustness(nu: float | None, contamination: float, outlier_scale: float) -> Rules:
    values = {
        "inverse_nu": 0.0 if nu is None else 1 / nu,
        "contamination": contamination,
        "outlier_scale": outlier_scale,
    }
    return {name: ArrayRule((1,), value=value, tolerance=EXACT) for name, value in values.items()}


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of nested lists, or None if the lengths of inner lists differ."""
    if not isinstance(value[0], list):
        return (len(value),)
    return (len(value), len(value[0])) if len({len(row) for row in value}) == 1 else None
