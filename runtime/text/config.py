"""Configuration of a language model. It is frozen, validated when it is created, and rejects unknown keys."""

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

# Added to softplus so that parameters are positive.
POSITIVE_FLOOR = 1e-6
# Range of the input-dependent log gains of slots. With e^-12, a token is ignored. With e^8, it overwrites the slot.
GATE_RANGE = (-12.0, 8.0)
# Process noise that is added to a slot per unit of its input gate.
PROCESS_GATE_SCALE = 0.1
MIXERS: tuple[Mixer, ...] = get_args(Mixer)
# Ablations that only RFA supports, with the values of the complete model.
ABLATIONS = {"kernel": "student_t", "prior": "lyapunov", "noise": "learned", "rotate_values": True, "unit_norm": False}
# Extensions of RFA as attention, with the values that disable them.
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
    """Set the mode of a model for the duration of a context, and restore the previous mode afterwards."""
    previous, model.mode = model.mode, mode
    try:
        yield
    finally:
        model.mode = previous


@dataclass(frozen=True)
class StrictConfig:
    """Base class of frozen dataclasses that reject unknown keys and can be converted to and from JSON types."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Create a configuration from a dictionary of JSON types.

        Raises:
            ValueError: If a key is missing or unknown. The message names it.
        """
        names = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - names)
        if unknown:
            raise ValueError(f"{cls.__name__} has no key {unknown}; the keys are {sorted(names)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that the value of a field is one of its choices.

    Raises:
        ValueError: If it is not one of them. The message names the field and the choices.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


@dataclass(frozen=True)
class LanguageModelConfig(StrictConfig):
    """Configuration of a decoder with one of several mixers.

    The mixers are RFA, with or without its recurrent mode, an ablation of RFA, softmax attention, AFA, the
    RT-Transformer ("radial_tangential"), or another system of `benchmarks/papers`.

    Args:
        head_dim: Number of complex dimensions D. A head has 2D real dimensions.
        frequencies: "banded" over the heads (SC-RFA), "full" for all frequencies in every head, or "none" for no
            rotation.
        damping, zero_decay_fraction: Fixed decay mu_h = b · max omega_h of the banded frequencies, which is zero for
            the slowest heads. AFA learns its decay from the initial value b · max omega_h in every head.
        initial_process: Initial standard deviation of RFA's process in the steady state, σ̃, as a multiple of the decay.
            By default, σ̃² = 0.1 in all heads with decay. Heads without decay always start from the same noise.
        kernel: Influence function of RFA.
        prior: Where RFA uses the precision P(lag): in the bias and in the weight of the residual ("lyapunov"), only in
            the bias ("additive"), or nowhere ("constant"). P(0) is used elsewhere.
        noise: Noise model. "anchor" uses gamma² alone, with sigma = eta = 0.
        rotate_values: Whether values are summed in the rotating frame.
        unit_norm: Whether queries and keys are scaled to unit length.
        temperature: Initial value of tau, the gain of query and key.
        distance_bias: Bias of softmax attention: none, the slopes of ALiBi, or scores that decay with the lag.
        n_slots: Number of memory slots per head. 0 means that the model has no recurrent mode.
        inner: Maximum number of reweighting passes K of the memory slots, and the default.
        innovation: Innovation from which the robust weight of the memory slots is computed: that of the key ("key") or
            that of the value ("value").
        robust_slots: Whether the memory slots use robust weights. If false, every weight is 1, and the slots are Kalman
            filters whose noise depends on the input.
        window: Number W of most recent tokens to which a query attends directly, in addition to the slots. A token is
            added to the slots when it leaves the window.
        learned_decay: Whether mu is learned, starting from the fixed decay. Heads without decay remain without decay.
        output_gate: Whether a sigmoid of the block's normalised input scales each head before the output projection.
        own_readout: Whether each mode has separate queries, output projections and norms. If false, only the gates of
            the slots are separate.
        confidence: Gate that combines RFA's output with the token's own value, given the evidence p: a gate of log p
            that starts "open", as in the paper, or "balanced", at p / (p + 1); or AFA's gate, which is "linear" in p.
            Memory slots with a gate can be trained but not exported.
        bias: Whether RFA's projections have biases, which represent a constant drift and measurement bias (RFA C.2).
        horizon: Number of tokens ahead that RFA estimates (RFA C.6).
        mixer_options: Options of a mixer of `benchmarks/papers`, which validates them.
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
    initial_process: float | None = None
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
        self._check_numbers()
        self._check_choices()
        self._check_slots()
        if self.distance_bias != "none" and self.mixer != "softmax":
            raise ValueError(f"distance_bias {self.distance_bias!r} requires the mixer 'softmax', got {self.mixer!r}")
        for name, whole in ABLATIONS.items():
            if self.mixer != "rfa" and getattr(self, name) != whole:
                raise ValueError(f"{name} {getattr(self, name)!r} requires the mixer 'rfa', got {self.mixer!r}")
        self._check_extensions()
        if self.mixer == "afa" and self.damping == 0:
            raise ValueError("damping must be > 0 for the mixer 'afa', because it is the initial value of the decay")
        if self.mixer == "rfa" and self.n_slots and not self._slots_fit:
            raise ValueError(
                "memory slots (n_slots > 0) require prior='lyapunov', noise='learned', rotate_values=True and "
                "unit_norm=False"
            )

    def _check_numbers(self) -> None:
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "head_dim", "mlp_ratio", "inner"):
            self._check_count(name, 1)
        self._check_count("n_slots", 0)
        self._check_count("window", 0)
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even, because frequencies form conjugate pairs, got {self.head_dim}")
        if not 0 <= self.zero_decay_fraction <= 1:
            raise ValueError(f"zero_decay_fraction must be in [0, 1], got {self.zero_decay_fraction}")
        if self.damping < 0:
            raise ValueError(f"damping must be >= 0, got {self.damping}")
        if self.initial_process is not None:
            self._check_initial_process(self.initial_process)
        if not self.temperature > 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")

    def _check_choices(self) -> None:
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
                raise ValueError(f"{name} requires the mixer 'rfa', got {self.mixer!r}")

    def _check_slots(self) -> None:
        if not self.robust_slots and (self.inner, self.innovation) != (1, "key"):
            raise ValueError(
                "inner and innovation must be 1 and 'key' without robust_slots, "
                f"got {self.inner} and {self.innovation!r}"
            )
        if self.window and ("recurrent" not in self.modes or self.kernel != "student_t"):
            raise ValueError(
                "a window requires mixer 'rfa', slots and kernel 'student_t', "
                f"got mixer {self.mixer!r}, n_slots {self.n_slots} and kernel {self.kernel!r}"
            )
        if self.own_readout and "recurrent" not in self.modes:
            raise ValueError(
                f"own_readout requires mixer 'rfa' and n_slots > 0, got mixer {self.mixer!r} and n_slots {self.n_slots}"
            )

    def _check_initial_process(self, multiple: float) -> None:
        if not 0 < multiple < math.inf:
            raise ValueError(f"initial_process must be a finite number > 0, got {multiple}")
        if self.mixer != "rfa" or self.noise != "learned":
            raise ValueError(
                "initial_process requires mixer 'rfa' and noise 'learned', "
                f"got mixer {self.mixer!r} and noise {self.noise!r}"
            )

    def _check_extensions(self) -> None:
        check_choice("confidence", self.confidence, CONFIDENCES)
        if not 0 <= self.horizon < math.inf:
            raise ValueError(f"horizon must be a finite number >= 0, got {self.horizon}")
        extended = [name for name, whole in EXTENSIONS.items() if getattr(self, name) != whole]
        if extended and (self.mixer != "rfa" or (self.n_slots and extended != ["confidence"])):
            raise ValueError(
                f"{extended[0]} requires the mixer 'rfa' with n_slots 0, "
                f"got mixer {self.mixer!r} and n_slots {self.n_slots}"
            )
        if self.mixer_options and self.mixer in ("rfa", "softmax"):
            raise ValueError(f"mixer_options require a mixer of benchmarks/papers, got {self.mixer!r}")

    def _check_count(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")

    @property
    def takes_passes(self) -> bool:
        """Whether the number of reweighting passes can be chosen for each stream in recurrent mode."""
        return "recurrent" in self.modes and self.inner > 1

    @property
    def _slots_fit(self) -> bool:
        """Whether the configuration is plain RFA, which memory slots require. Ablations have no recurrent mode."""
        return self.prior == "lyapunov" and self.noise == "learned" and self.rotate_values and not self.unit_norm

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Decoding modes of the model. Softmax attention, and RFA without memory slots, have no recurrent mode."""
        return ("attention", "recurrent") if self.mixer == "rfa" and self.n_slots else ("attention",)
