"""The configuration of a language model: frozen, self-checking, strict about its keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, get_args

from rfa.runtime.choices import Mode

Mixer = Literal["rfa", "softmax", "afa", "radial_tangential", "tensor", "polar", "unrolled", "stacked"]
Kernel = Literal["student_t", "gaussian"]
Frequencies = Literal["banded", "full", "none"]
Prior = Literal["lyapunov", "constant", "additive"]
Noise = Literal["learned", "anchor"]
DistanceBias = Literal["none", "alibi", "decay"]
Innovation = Literal["key", "value"]
Confidence = Literal["none", "open", "balanced", "linear"]

# Added to softplus where a parameter must be positive.
POSITIVE_FLOOR = 1e-6
# Range of the input-driven log gains of slots: e^-12 is "ignore this token", e^8 is "overwrite the slot".
GATE_RANGE = (-12.0, 8.0)
# Added process noise of a slot per unit of its input gate.
PROCESS_GATE_SCALE = 0.1
MIXERS: tuple[Mixer, ...] = get_args(Mixer)
# Ablations that only RFA supports, and the values without ablation.
ABLATIONS = {"kernel": "student_t", "prior": "lyapunov", "noise": "learned", "rotate_values": True, "unit_norm": False}
# Extensions of RFA as attention, and the values without them.
EXTENSIONS = {"confidence": "none", "bias": False, "horizon": 0.0}
MODES: tuple[Mode, ...] = ("attention", "recurrent")
KERNELS = ("student_t", "gaussian")
FREQUENCIES = ("banded", "full", "none")
PRIORS = ("lyapunov", "constant", "additive")
NOISES = ("learned", "anchor")
DISTANCE_BIASES = ("none", "alibi", "decay")
INNOVATIONS = ("key", "value")
CONFIDENCES = ("none", "open", "balanced", "linear")


@contextmanager
def in_mode(model: Any, mode: Mode) -> Iterator[None]:
    """A model of two modes in one of them, and as it was afterwards, however that ends."""
    previous, model.mode = model.mode, mode
    try:
        yield
    finally:
        model.mode = previous


@dataclass(frozen=True)
class StrictConfig:
    """A frozen dataclass that refuses unknown keys, with the way to and from JSON."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from a JSON object; a missing or unknown key is a ValueError that names it."""
        names = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - names)
        if unknown:
            raise ValueError(f"{cls.__name__} has no {unknown}; known are {sorted(names)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value of a field that is none of its choices.

    Raises:
        ValueError: If it is none of them; the message names the field and the choices.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


@dataclass(frozen=True)
class LanguageModelConfig(StrictConfig):
    """A decoder: RFA with its recurrent twin, one of the ablations of RFA, softmax attention, AFA, or the
    RT-Transformer ("radial_tangential"), or another system of `benchmarks/papers`.

    Args:
        head_dim: complex dims D, so a head has 2D reals.
        frequencies: "banded" over the heads (SC-RFA), the "full" bank in every head, or "none": no rotation.
        damping, zero_decay_fraction: the fixed decay mu_h = b · max omega_h of the banded bank, zero for the slowest.
            AFA learns its decay from b · max omega_h on, in every head.
        kernel: influence function of RFA.
        prior: how the precision P(lag) acts in RFA: in bias and residual ("lyapunov"), not over the lag ("constant"),
            or in the bias alone ("additive").
        noise: "anchor" keeps gamma² alone, so that sigma = eta = 0.
        rotate_values: values are summed in the rotating frame; otherwise as they are.
        unit_norm: queries and keys are scaled to unit length.
        temperature: tau at the start (the gain of query and key).
        distance_bias: of softmax attention: none, ALiBi's slopes, or scores that decay with the lag.
        n_slots: slots of a head; 0 is a model without the recurrent mode.
        inner: reweighting passes K of the slots.
        innovation: which innovation drives the robust weight of the slots, that of the key or of the value.
        robust_slots: without, every token has the weight one, and the slots are Kalman filters with noises from the
            input.
        window: exact tokens W that are read together with the slots, which a token enters when it leaves the window.
        learned_decay: mu is learned from the fixed decay on; the heads without decay stay without.
        output_gate: a sigmoid of the block's normalised input scales each head before the output projection.
        confidence: RFA's output is fused with the token's own value by its evidence p: by a gate of log p that starts
            "open", as printed, or "balanced", at p / (p + 1), or by AFA's gate, "linear" in p.
        bias: RFA's projections have biases, which a constant drift and measurement bias are (RFA C.2).
        horizon: tokens ahead for which RFA's estimate is made (RFA C.6).
        mixer_options: options of a mixer of `benchmarks/papers`, which checks them.
        own_readout: each mode has separate queries, output projections and norms; else the modes share all but the
            gates of the slots.
    """

    vocab_size: int
    d_model: int = 256
    n_layers: int = 4
    n_heads: int = 4
    head_dim: int = 32
    mlp_ratio: int = 4
    mixer: Mixer = "rfa"
    frequencies: Frequencies = "banded"
    damping: float = 0.05
    zero_decay_fraction: float = 0.25
    kernel: Kernel = "student_t"
    prior: Prior = "lyapunov"
    noise: Noise = "learned"
    rotate_values: bool = True
    unit_norm: bool = False
    temperature: float = 1.0
    distance_bias: DistanceBias = "none"
    n_slots: int = 16
    inner: int = 1
    innovation: Innovation = "key"
    robust_slots: bool = True
    window: int = 0
    learned_decay: bool = False
    output_gate: bool = False
    own_readout: bool = False
    confidence: Confidence = "none"
    bias: bool = False
    horizon: float = 0.0
    mixer_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "head_dim", "mlp_ratio", "inner"):
            self._check_count(name, 1)
        self._check_count("n_slots", 0)
        self._check_count("window", 0)
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even (conjugate pairs of frequencies), got {self.head_dim}")
        if not 0 <= self.zero_decay_fraction <= 1:
            raise ValueError(f"zero_decay_fraction must be in [0, 1], got {self.zero_decay_fraction}")
        if self.damping < 0:
            raise ValueError(f"damping must be >= 0, got {self.damping}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")
        check_choice("mixer", self.mixer, MIXERS)
        check_choice("frequencies", self.frequencies, FREQUENCIES)
        check_choice("kernel", self.kernel, KERNELS)
        check_choice("prior", self.prior, PRIORS)
        check_choice("noise", self.noise, NOISES)
        check_choice("distance_bias", self.distance_bias, DISTANCE_BIASES)
        check_choice("innovation", self.innovation, INNOVATIONS)
        for name in ("robust_slots", "learned_decay", "output_gate", "own_readout", "bias"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
            if self.mixer != "rfa" and getattr(self, name) != (name == "robust_slots"):
                raise ValueError(f"{name} is of the mixer 'rfa', got {self.mixer!r}")
        if not self.robust_slots and (self.inner, self.innovation) != (1, "key"):
            raise ValueError(
                "inner and innovation are of the robust weight: without robust_slots they must be 1 and 'key', "
                f"got {self.inner} and {self.innovation!r}"
            )
        if self.window and ("recurrent" not in self.modes or self.kernel != "student_t"):
            raise ValueError(
                "a window is read with slots in one Student-t softmax, "
                f"got mixer {self.mixer!r}, n_slots {self.n_slots} and kernel {self.kernel!r}"
            )
        if self.own_readout and "recurrent" not in self.modes:
            raise ValueError("own_readout is of a model of both modes: with n_slots 0 there is one")
        if self.distance_bias != "none" and self.mixer != "softmax":
            raise ValueError(f"distance_bias {self.distance_bias!r} is of the mixer 'softmax', got {self.mixer!r}")
        for name, whole in ABLATIONS.items():
            if self.mixer != "rfa" and getattr(self, name) != whole:
                raise ValueError(f"{name} {getattr(self, name)!r} is of the mixer 'rfa', got {self.mixer!r}")
        self._check_extensions()
        if self.mixer == "afa" and self.damping == 0:
            raise ValueError("damping must be > 0 for the mixer 'afa', whose decay is learned from there on")
        if self.mixer == "rfa" and self.n_slots and not self._slots_fit:
            raise ValueError(
                "slots run with prior 'lyapunov', noise 'learned', rotated values and no unit_norm; "
                "for another model give n_slots 0"
            )

    def _check_extensions(self) -> None:
        check_choice("confidence", self.confidence, CONFIDENCES)
        if not 0 <= self.horizon < math.inf:
            raise ValueError(f"horizon must be a finite number >= 0, got {self.horizon}")
        extended = [name for name, whole in EXTENSIONS.items() if getattr(self, name) != whole]
        if extended and (self.mixer != "rfa" or self.n_slots):
            raise ValueError(f"{extended[0]} is of the mixer 'rfa' with n_slots 0")
        if self.mixer_options and self.mixer in ("rfa", "softmax"):
            raise ValueError(f"mixer_options are of a mixer of benchmarks/papers, got {self.mixer!r}")

    def _check_count(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")

    @property
    def _slots_fit(self) -> bool:
        """Slots are the recurrent form of RFA, not of its ablations."""
        return self.prior == "lyapunov" and self.noise == "learned" and self.rotate_values and not self.unit_norm

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Softmax attention, and RFA without slots, have no recurrent twin."""
        return ("attention", "recurrent") if self.mixer == "rfa" and self.n_slots else ("attention",)
