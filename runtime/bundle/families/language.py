"""Configuration of language models: Robust Filter Attention with ablations and memory slots, and baselines
(`rfa.model.language`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rfa.runtime.bundle.calibration_document import LanguageCalibration
from rfa.runtime.bundle.families.arrays import AnyArray, ArrayRule, Rules
from rfa.runtime.bundle.families.base import FamilyConfig, GraphRule, spec
from rfa.runtime.bundle.manifest import Kind, TensorSpec
from rfa.runtime.choices import Mode

# Constants of the architecture (`rfa.model.layers`, `rfa.model.dynamics`).
FLOOR = 1e-6
GATE_RANGE = (-12.0, 8.0)
PROCESS_GATE_SCALE = 0.1
NORM_EPS = 1e-6
SLOWEST = 10_000.0
# Options that only the mixer 'rfa' supports, and their defaults.
OPTIONS_OF_RFA: dict[str, object] = {
    "kernel": "student_t", "prior": "lyapunov", "noise": "learned", "rotate_values": True, "unit_norm": False,
    "learned_decay": False, "output_gate": False, "own_readout": False, "robust_slots": True, "confidence": "none",
    "bias": False, "horizon": 0.0, "initial_process": None,
}  # fmt: skip
Count = Annotated[int, Field(ge=1, le=4_096)]


class LanguageConfig(FamilyConfig):
    """Configuration of a language model. Its fields are those of `rfa.runtime.text.config.LanguageModelConfig` that
    bundles support."""

    kind: ClassVar[Kind] = "lm"
    calibration = LanguageCalibration

    vocab_size: Annotated[int, Field(ge=1, le=1 << 20)]
    d_model: Annotated[int, Field(ge=1, le=65_536)] = 256
    n_layers: Annotated[int, Field(ge=1, le=512)] = 4
    n_heads: Count = 4
    head_dim: Annotated[int, Field(ge=2, le=4_096, multiple_of=2)] = 32
    mlp_ratio: Annotated[int, Field(ge=1, le=64)] = 4
    mixer: Literal["rfa", "softmax", "afa", "radial_tangential"] = "rfa"
    frequencies: Literal["banded", "full", "none"] = "banded"
    damping: Annotated[float, Field(ge=0, le=1e6)] = 0.05
    zero_decay_fraction: Annotated[float, Field(ge=0, le=1)] = 0.25
    initial_process: Annotated[float | None, Field(gt=0, le=1e6)] = None
    kernel: Literal["student_t", "gaussian"] = "student_t"
    prior: Literal["lyapunov", "constant", "additive"] = "lyapunov"
    noise: Literal["learned", "anchor"] = "learned"
    rotate_values: bool = True
    unit_norm: bool = False
    temperature: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    distance_bias: Literal["none", "alibi", "decay"] = "none"
    n_slots: Annotated[int, Field(ge=0, le=4_096)] = 16
    inner: Annotated[int, Field(ge=1, le=64)] = 1
    innovation: Literal["key", "value"] = "key"
    robust_slots: bool = True
    window: Annotated[int, Field(ge=0, le=4_096)] = 0
    learned_decay: bool = False
    output_gate: bool = False
    own_readout: bool = False
    confidence: Literal["none", "open", "balanced", "linear"] = "none"
    bias: bool = False
    horizon: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    mixer_options: Annotated[dict[Literal["geodesic"], bool], Field(default_factory=dict, max_length=1)]

    @property
    def has_slots(self) -> bool:
        """Whether the model has memory slots and therefore a recurrent mode."""
        return self.mixer == "rfa" and self.n_slots > 0

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Decoding modes of the model. The last one is the default."""
        return ("attention", "recurrent") if self.has_slots else ("attention",)

    @property
    def passes(self) -> tuple[int, int]:
        """Smallest and largest number of reweighting passes K. The largest is the default."""
        return (1 if self.takes_passes() else self.inner), self.inner

    def takes_passes(self) -> bool:
        """Return whether the number of passes K is an input of the recurrent graphs."""
        return self.has_slots and self.inner > 1

    @property
    def gpu_refusal(self) -> str | None:
        """Feature of the model that the GPU decoder does not support. None if the GPU decoder supports all features of
        the model."""
        if self.mixer != "rfa":
            return f"the mixer {self.mixer!r}"
        if self.confidence != "none" or self.bias or self.horizon:
            return "the option confidence, bias or horizon"
        return f"exact attention to the last {self.window} tokens" if self.window else None

    @model_validator(mode="after")
    def _slots_are_whole(self) -> Self:
        """Check that options of memory slots and mixers are used only with models that have them, and that memory slots
        are used only with plain RFA."""
        for name, default in OPTIONS_OF_RFA.items():
            if self.mixer != "rfa" and getattr(self, name) != default:
                raise ValueError(f"{name} requires mixer 'rfa'")
        if self.distance_bias != "none" and self.mixer != "softmax":
            raise ValueError("distance_bias requires mixer 'softmax'")
        if self.mixer_options and self.mixer != "radial_tangential":
            raise ValueError("mixer_options requires mixer 'radial_tangential'")
        if self.has_slots and (self.confidence != "none" or self.bias or self.horizon):
            raise ValueError("confidence, bias and horizon require n_slots 0")
        is_whole = self.prior == "lyapunov" and self.noise == "learned" and self.rotate_values and not self.unit_norm
        if self.has_slots and not is_whole:
            raise ValueError("memory slots require prior 'lyapunov', noise 'learned', rotated values and no unit_norm")
        if not self.has_slots and (self.window or self.own_readout):
            raise ValueError("window and own_readout require memory slots")
        if self.window and self.kernel != "student_t":
            raise ValueError("a window requires kernel 'student_t'")
        if not self.robust_slots and (self.inner, self.innovation) != (1, "key"):
            raise ValueError("inner must be 1 and innovation must be 'key' if robust_slots is false")
        return self

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Rules:
        rules: dict[str, tuple[int, ...]] = {"embedding.weight": (self.vocab_size, self.d_model), **self._norm("norm")}
        for i in range(self.n_layers):
            rules |= {f"blocks.{i}.{name}": shape for name, shape in self._block().items()}
        rules |= {f"initial.{part.name}": tuple(map(int, part.shape)) for part in self.state()}
        return {name: ArrayRule(shape) for name, shape in rules.items()}

    def _block(self) -> dict[str, tuple[int, ...]]:
        d, heads, width = self.d_model, self.n_heads, self.n_heads * 2 * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            **(self._norm("mixer_norm") if self.mixer != "radial_tangential" else {}),
            **self._norm("feed_forward_norm"),
            **self._own("mixer.query", (width, d)),
            "mixer.key.weight": (width, d),
            "mixer.value.weight": (width, d),
            **self._own("mixer.output", (d, width)),
            "feed_forward.up.weight": (self.mlp_ratio * d, d),
            "feed_forward.down.weight": (d, self.mlp_ratio * d),
        }
        shapes |= {f"mixer.{name}": (heads,) for name in self._scalars()}
        if self.output_gate:
            shapes |= {"mixer.output_gate.weight": (heads, d), "mixer.output_gate.bias": (heads,)}
        if self.bias:
            shapes |= {f"mixer.drift.{name}": (width,) for name in ("query", "key", "value")}
            shapes["mixer.drift.output"] = (d,)
        return shapes | (self._slots() if self.has_slots else {})

    def _scalars(self) -> list[str]:
        """Return the names of the parameters of a mixer that have one value per head."""
        if self.mixer == "softmax":
            return []
        raw = ["gamma2", "tau", *(["nu"] if self.mixer != "afa" else []), *(["mu"] if self.learned_decay else [])]
        raw += ["process", "eta2"] if self.noise == "learned" else []
        raw += ["floor"] if self.mixer == "radial_tangential" else []
        names = [f"dynamics.{name}_raw" for name in raw]
        names += ["dynamics.alpha", "delta"] if self.mixer == "afa" else []
        names += ["confidence.scale", "confidence.offset"] if self.confidence != "none" else []
        return names + (["confidence.delta_raw"] if self.confidence == "linear" else [])

    def _slots(self) -> dict[str, tuple[int, ...]]:
        heads, slots = self.n_heads, self.n_slots
        gates = 2 * heads * slots
        shapes: dict[str, tuple[int, ...]] = {
            "mixer.gates.weight": (gates, self.d_model),
            "mixer.gates.bias": (gates,),
            "mixer.slot_log_mu": (heads, slots),
            "mixer.initial_means": (heads, slots, 4 * self.head_dim),
            "mixer.initial_precision_raw": (heads, slots),
            "mixer.delta_raw": (heads,),
        }
        if self.robust_slots:
            shapes["mixer.weight_scale_raw"] = (heads,)
        return shapes

    def _own(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the name and the shape of a weight. If `own_readout` is set, also return those of the separate weight
        of recurrent mode."""
        own = {f"{name}.recurrent_weight": shape} if self.own_readout else {}
        return {f"{name}.weight": shape, **own}

    def _norm(self, name: str) -> dict[str, tuple[int, ...]]:
        return self._own(name, (self.d_model,))

    def derived(self, weights: Mapping[str, AnyArray]) -> Rules:
        if not self.has_slots:
            return {}
        means = self._stacked(weights, "initial_means")
        precisions = _positive(self._stacked(weights, "initial_precision_raw"))
        rules = {
            "initial.means": ArrayRule(means.shape, value=means, tolerance=0.0),
            "initial.precisions": ArrayRule(precisions.shape, above=0.0, value=precisions),
        }
        if self.window:
            at_rest = self._own_process(weights)[:, None] + PROCESS_GATE_SCALE  # [L, 1, H, S]
            silent = np.zeros((*at_rest.shape[:-1], 4 * self.head_dim + self.n_slots))
            ring = np.concatenate([silent, at_rest], axis=-1).repeat(self.window, axis=1)
            rules["initial.ring"] = ArrayRule(ring.shape, least=0.0, value=ring)
        return rules

    def _own_process(self, weights: Mapping[str, AnyArray]) -> AnyArray:
        """Return the process noise of the memory slots per token, `[L, H, S]`."""
        steady = _positive(self._stacked(weights, "dynamics.process_raw"))[..., None]
        own: AnyArray = -steady * np.expm1(-2 * np.exp(self._stacked(weights, "slot_log_mu")))
        return own

    def _stacked(self, weights: Mapping[str, AnyArray], name: str) -> AnyArray:
        """Return a parameter of all mixers, `[L, …]` float64."""
        return np.stack([weights[f"blocks.{i}.mixer.{name}"] for i in range(self.n_layers)]).astype(np.float64)

    @property
    def has_constants(self) -> bool:
        """Whether the compiled decoder supports the memory slots of the model."""
        return self.has_slots and self.innovation == "key" and not self.window

    def constants(self, weights: Mapping[str, AnyArray]) -> Rules | None:
        """See `FamilyConfig`. The values are computed again, as in `rfa.model.decoder_constants`."""
        if not self.has_constants:
            return None
        raw = {name: self._stacked(weights, f"dynamics.{name}_raw") for name in ("nu", "tau", "eta2", "gamma2")}
        nu = 2 + self.head_dim * _positive(raw["nu"])
        kappa = (nu + self.head_dim) / self.head_dim
        eta2, gamma2 = _positive(raw["eta2"]), _positive(raw["gamma2"])
        rates = np.exp(self._stacked(weights, "slot_log_mu"))
        scale = _positive(self._stacked(weights, "weight_scale_raw")) if self.robust_slots else np.zeros_like(nu)
        heads = {
            "nu": nu, "kappa": kappa, "weight_exponent": kappa * scale, "residual_noise": gamma2 + eta2,
            "gamma2": gamma2, "tau": _positive(raw["tau"]), "delta": _positive(self._stacked(weights, "delta_raw")),
            "eta2": eta2,
        }  # fmt: skip
        fixed = {
            "gate_lowest": GATE_RANGE[0], "gate_highest": GATE_RANGE[1], "process_gate_scale": PROCESS_GATE_SCALE,
            "norm_eps": NORM_EPS,
        }  # fmt: skip
        omega = self._omega()
        return {
            **{name: ArrayRule(value.shape, least=0.0, value=value) for name, value in heads.items()},
            "decay": ArrayRule(rates.shape, least=0.0, most=1.0, value=np.exp(-rates)),
            "own_process": ArrayRule(rates.shape, least=0.0, value=self._own_process(weights)),
            "omega": ArrayRule(omega.shape, ("float64",), value=omega, tolerance=1e-9),
            **{name: ArrayRule((), value=value) for name, value in fixed.items()},
        }

    def _omega(self) -> AnyArray:
        """Return the frequencies `[H, D]` of `rfa.model.dynamics.frequencies`."""
        heads, half = self.n_heads, self.head_dim // 2
        if self.frequencies == "none":
            return np.zeros((heads, self.head_dim))
        if self.frequencies == "full":
            bands = np.broadcast_to(SLOWEST ** (-np.arange(half) / half), (heads, half))
        else:
            count = heads * half
            bands = (SLOWEST ** (-np.arange(count) / count))[::-1].reshape(heads, half)
        return np.stack([bands, -bands], axis=-1).reshape(heads, self.head_dim)

    def state(self) -> tuple[TensorSpec, ...]:
        if not self.has_slots:
            return ()
        shape = (self.n_layers, self.n_heads, self.n_slots)
        slots = spec("means", *shape, 4 * self.head_dim), spec("precisions", *shape)
        if not self.window:
            return slots
        ring = self.n_layers, self.window, self.n_heads, 4 * self.head_dim + 2 * self.n_slots
        return *slots, spec("ring", *ring)

    def graphs(self) -> dict[str, GraphRule]:
        heads, width = self.n_heads, 2 * self.head_dim
        state = [TensorSpec(part.name, part.dtype, ("batch", *part.shape)) for part in self.state()]
        after = tuple(TensorSpec(f"next_{part.name}", part.dtype, part.shape) for part in state)
        noise = spec("noise", "batch", heads, width)
        output = (
            spec("logits", "batch", self.vocab_size),
            spec("log_precision", "batch"),
            spec("latent", "batch", heads, width),
        )

        def rows(name: str, count: str) -> TensorSpec:
            return spec(name, "batch", self.n_layers, heads, count, width)

        def whole(name: str, *shape: str) -> TensorSpec:
            return spec(name, *shape, dtype="int64")

        position, tokens = whole("position", "batch"), whole("tokens", "batch", "length")
        passes = (whole("passes", "batch"),) if self.takes_passes() else ()
        cache = rows("keys", "capacity"), rows("values", "capacity")
        new = rows("new_keys", "length"), rows("new_values", "length")
        attention = {"attention": GraphRule((tokens, position, *cache, noise), (*output, *new))}
        if not state:
            return attention
        return attention | {
            "step": GraphRule((whole("token", "batch"), position, noise, *passes, *state), (*output, *after)),
            "prefill": GraphRule((tokens, whole("length", "batch"), position, *passes, *state), (*output, *after)),
        }


def _positive(raw: Any) -> AnyArray:
    """Return softplus(raw) + floor, like `rfa.model.dynamics.positive`."""
    result: AnyArray = np.logaddexp(0.0, raw) + FLOOR
    return result
