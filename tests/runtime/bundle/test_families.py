"""What a family declares is what its model has, for many configurations; and nothing else is accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from rfa.export.filter_export import bundle_weights as filter_weights
from rfa.export.language_export import bundle_weights as language_weights
from rfa.model.checkpoint import FAMILIES as MODELS
from rfa.model.decoder_constants import decoder_constants
from rfa.runtime.bundle.bundle import BundleError
from rfa.runtime.bundle.families import FAMILIES, FamilyConfig
from rfa.runtime.bundle.families.arrays import AnyArray, check_arrays
from rfa.runtime.text.config import StrictConfig

LANGUAGE: dict[str, Any] = {
    "vocab_size": 11, "d_model": 12, "n_layers": 2, "n_heads": 2, "head_dim": 4, "n_slots": 3, "mlp_ratio": 2,
}  # fmt: skip
LINEAR: dict[str, Any] = {
    "drift": [[-0.9, -2.0], [1.0, -1.1]], "process_noise": [[0.3, 0.0], [0.0, 0.3]],
    "measurement_noise": [[0.5, 0.1], [0.1, 0.5]], "nu": 4.0,
}  # fmt: skip
CHAIN: dict[str, Any] = {
    "drift": [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, -0.5]],
    "process_noise": [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.2]], "measurement_noise": [[0.25]],
    "observation": [[1.0, 0.0, 0.0]], "initial_covariance": [[9.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    ("language", LANGUAGE),
    ("language", {**LANGUAGE, "own_readout": True, "output_gate": True, "frequencies": "full"}),
    ("language", {**LANGUAGE, "learned_decay": True, "frequencies": "none", "n_layers": 1}),
    ("language", {**LANGUAGE, "robust_slots": False, "n_heads": 1, "n_slots": 1}),
    ("language", {**LANGUAGE, "innovation": "value", "inner": 2}),
    ("language", {**LANGUAGE, "window": 5, "own_readout": True}),
    ("language", {**LANGUAGE, "n_slots": 0, "prior": "additive", "rotate_values": False, "output_gate": True}),
    ("language", {**LANGUAGE, "n_slots": 0, "noise": "anchor", "unit_norm": True, "learned_decay": True}),
    ("language", {**LANGUAGE, "n_slots": 0, "confidence": "linear", "bias": True, "horizon": 1.0}),
    ("language", {**LANGUAGE, "mixer": "softmax", "distance_bias": "alibi"}),
    ("language", {**LANGUAGE, "mixer": "afa"}),
    ("language", {**LANGUAGE, "mixer": "radial_tangential", "mixer_options": {"geodesic": True}}),
    ("linear", LINEAR),
    ("linear", {**LINEAR, "rule": "learned", "offset": [3.0, -2.0], "initial_mean": [1.0, 0.5]}),
    ("linear", {**LINEAR, "nu": None, "observation": [[2.0, 0.0], [0.5, 1.0]]}),
    ("linear", {**LINEAR, "reacquire": None, "drift": [[-1.0, 0.0], [0.0, -0.5]]}),
    ("linear", {**LINEAR, "drift": [[0.0, 0.0], [0.0, 0.0]], "initial_covariance": [[4.0, 1.0], [1.0, 4.0]]}),
    ("linear", CHAIN),
    ("linear", {**CHAIN, "drift": [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]}),
    ("deep", {"observation_size": 1}),
    ("deep", {"observation_size": 3, "n_modes": 2, "n_layers": 1, "n_heads": 2, "head_dim": 6, "mlp_ratio": 3}),
    ("series", {"d_model": 32, "n_layers": 1, "n_heads": 2, "head_dim": 4, "n_slots": 2}),
    ("series", {"d_model": 64, "mlp_ratio": 2, "embedding_width": 32, "head_width": 96, "head_inner": 32}),
]
NAMES = [f"{family} {i}" for i, (family, _) in enumerate(CASES)]


def made(family: str, config: Mapping[str, Any]) -> tuple[FamilyConfig, Any, dict[str, AnyArray]]:
    """The family's own idea of a configuration, the model of it with parameters as after training, and its arrays."""
    config_class, model_class = MODELS[family]
    torch.manual_seed(0)
    model = model_class(config_class.from_dict(config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    if family == "series":
        weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    else:
        weights = language_weights(model) if family == "language" else filter_weights(model)
    return FAMILIES[family].model_validate(config), model, weights


def check(config: FamilyConfig, weights: Mapping[str, AnyArray]) -> None:
    check_arrays(weights, config.weights({name: array.shape for name, array in weights.items()}), "model.safetensors")
    derived = config.derived(weights)
    check_arrays({name: weights[name] for name in derived}, derived, "model.safetensors")


@pytest.mark.parametrize(("family", "config"), CASES, ids=NAMES)
def test_the_arrays_of_a_model_are_those_declared(family: str, config: dict[str, Any]) -> None:
    declared, model, weights = made(family, config)
    check(declared, weights)
    if family == "language" and "recurrent" not in model.config.modes:
        assert declared.state() == ()
        return
    if family == "series":
        means, precisions = model.blocks[0].mixer.initial_state()
        shapes = {"means": (len(model.blocks), *means.shape), "precisions": (len(model.blocks), *precisions.shape)}
        assert {part.name: part.shape for part in declared.state()} == shapes
        return
    state = model.init_state(1)
    found = state._asdict() if family == "language" else state
    carried = {name: tensor for name, tensor in found.items() if name != "position"}
    assert {part.name: part.shape for part in declared.state()} == {
        name: tuple(tensor.shape[1:]) for name, tensor in carried.items()
    }


@pytest.mark.parametrize("config", [config for family, config in CASES if family == "language"])
def test_the_constants_of_the_decoder_are_those_that_torch_forms(config: dict[str, Any]) -> None:
    declared, model, weights = made("language", config)
    rules = declared.constants(weights)
    if rules is None:
        with pytest.raises(
            ValueError, match=r"has no memory slots|requires (innovation 'key'|window 0|mixer 'rfa'|confidence)"
        ):
            decoder_constants(model)
        return
    constants = {name: tensor.numpy() for name, tensor in decoder_constants(model).items()}
    check_arrays(constants, rules, "decoder.safetensors")


@pytest.mark.parametrize("family", FAMILIES)
def test_configurations_have_the_same_fields_and_defaults(family: str) -> None:
    config_class: type[StrictConfig] = MODELS[family][0]
    defaults = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(config_class)
    }
    found = {
        name: dataclasses.MISSING if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in FAMILIES[family].model_fields.items()
    }
    assert {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()} == found


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mixer": "tensor"}, "mixer"),
    ({"mixer": "softmax", "kernel": "gaussian"}, "kernel requires mixer 'rfa'"),
    ({"mixer": "afa", "mixer_options": {"geodesic": True}}, "mixer_options requires mixer 'radial_tangential'"),
    ({"mixer": "radial_tangential", "mixer_options": {"passes": True}}, "mixer_options"),
    ({"distance_bias": "alibi"}, "distance_bias"),
    ({"confidence": "open"}, "require n_slots 0"),
    ({"horizon": 1.0}, "require n_slots 0"),
    ({"prior": "constant"}, "slots require prior"),
    ({"noise": "anchor"}, "slots require prior"),
    ({"rotate_values": False}, "slots require prior"),
    ({"unit_norm": True}, "slots require prior"),
    ({"n_slots": 0, "own_readout": True}, "require memory slots"),
    ({"n_slots": 0, "window": 4}, "require memory slots"),
    ({"window": 4, "kernel": "gaussian"}, "a window requires kernel 'student_t'"),
    ({"robust_slots": False, "inner": 2}, "if robust_slots is false"),
    ({"robust_slots": False, "innovation": "value"}, "if robust_slots is false"),
]


@pytest.mark.parametrize(("given", "reason"), REFUSED, ids=str)
def test_what_no_model_is_no_bundle_says(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FAMILIES["language"].model_validate({**LANGUAGE, **given})


# What is not declared is refused, array by array.


def without(name: str) -> Callable[[dict[str, AnyArray]], object]:
    return lambda arrays: arrays.pop(name)


def _more(arrays: dict[str, AnyArray]) -> None:
    arrays["blocks.2.mixer.delta_raw"] = np.ones(2, np.float32)


def replaced(name: str, change: Callable[[AnyArray], AnyArray]) -> Callable[[dict[str, AnyArray]], object]:
    def damage(arrays: dict[str, AnyArray]) -> None:
        arrays[name] = change(arrays[name])

    return damage


def with_first(value: float) -> Callable[[AnyArray], AnyArray]:
    def change(array: AnyArray) -> AnyArray:
        copy = array.copy()
        copy.flat[0] = value
        return copy

    return change


FORMS: dict[str, Callable[[AnyArray], AnyArray]] = {
    "wider": lambda array: np.concatenate([array, array], axis=-1),
    "shorter": lambda array: array[:-1],
    "flat": lambda array: array.ravel(),
    "deeper": lambda array: array[None],
    "empty": lambda array: array[:0],
    "double": lambda array: array.astype(np.float64),
    "whole": lambda array: array.astype(np.int64),
    "not a number": with_first(np.nan),
    "infinite": with_first(np.inf),
}
CONSTANTS = (
    "decay",
    "own_process",
    "nu",
    "kappa",
    "weight_exponent",
    "residual_noise",
    "gamma2",
    "tau",
    "delta",
    "eta2",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_of_another_form_are_refused(name: str, form: str) -> None:
    declared, model, weights = made("language", LANGUAGE)
    constants = {key: tensor.numpy() for key, tensor in decoder_constants(model).items()}
    constants[name] = FORMS[form](constants[name])
    with pytest.raises(BundleError, match=rf"^decoder\.safetensors: {name} "):
        check_arrays(constants, declared.constants(weights) or {}, "decoder.safetensors")


DAMAGES: dict[str, tuple[Callable[[dict[str, AnyArray]], object], str]] = {
    "no decay": (without("decay"), "decay is missing"),
    "another": (
        lambda arrays: arrays.update(more=np.ones(1, np.float32)),
        "more is not an array of this configuration",
    ),
    "a layer more": (
        lambda arrays: arrays.update({name: np.concatenate([arrays[name], arrays[name][:1]]) for name in CONSTANTS}),
        "decay is|nu is",
    ),
    "slots of another model": (
        lambda arrays: arrays.update({name: arrays[name].repeat(2, -1) for name in ("decay", "own_process")}),
        "decay is",
    ),
    "a decay that grows": (replaced("decay", with_first(1.5)), "decay contains a value above 1"),
    "a negative decay": (replaced("decay", with_first(-0.5)), "decay contains a value below 0"),
    "a negative variance": (replaced("eta2", with_first(-1.0)), "eta2 contains a value below 0"),
    "another decay": (replaced("decay", lambda array: array * np.float32(0.999)), "decay differs from the value"),
    "other frequencies": (replaced("omega", lambda array: array * 1.001), "omega differs from the value"),
    "another range of the gates": (
        replaced("gate_highest", lambda array: array + np.float32(80)),
        "gate_highest differs from the value",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_constants_that_fit_other_weights_are_refused(damage: str) -> None:
    declared, model, weights = made("language", LANGUAGE)
    constants = {key: tensor.numpy() for key, tensor in decoder_constants(model).items()}
    change, reason = DAMAGES[damage]
    change(constants)
    with pytest.raises(BundleError, match=rf"^decoder\.safetensors: .*({reason})"):
        check_arrays(constants, declared.constants(weights) or {}, "decoder.safetensors")


WEIGHTS: list[tuple[str, dict[str, Any], Callable[[dict[str, AnyArray]], object], str]] = [
    ("language", LANGUAGE, without("norm.weight"), "norm.weight is missing"),
    ("language", LANGUAGE, _more, r"blocks\.2\.mixer\.delta_raw is not an array of this configuration"),
    ("language", LANGUAGE, replaced("initial.means", with_first(0.5)), "initial.means differs from the value"),
    ("language", LANGUAGE, replaced("initial.precisions", with_first(-1.0)), "initial.precisions contains a value"),
    (
        "language",
        {**LANGUAGE, "window": 2},
        replaced("initial.ring", with_first(0.5)),
        "initial.ring differs from the value",
    ),
    ("language", {**LANGUAGE, "window": 2}, without("initial.ring"), "initial.ring is missing"),
    ("linear", LINEAR, replaced("noise", lambda array: -array), "noise is not a covariance"),
    (
        "linear",
        LINEAR,
        replaced("prior_covariance", lambda array: array - 100 * np.eye(2, dtype=np.float32)),
        "covaria",
    ),
    ("linear", LINEAR, replaced("rate_re", lambda array: array * np.float32(1.1)), "rates and basis"),
    ("linear", LINEAR, replaced("noise_re", lambda array: array * np.float32(1.1)), "coordinates of the modes"),
    ("linear", LINEAR, replaced("inverse_nu", lambda array: array * 2), "inverse_nu differs from the value"),
    ("linear", CHAIN, without("member"), "is not an array of this configuration"),
    ("linear", CHAIN, replaced("node_weights", lambda array: array[:, :-1]), "do not match"),
    ("linear", CHAIN, replaced("power_re", lambda array: array * 2), "rates and basis"),
    ("deep", {"observation_size": 1}, replaced("scale", lambda array: -array), "scale contains a value"),
    ("deep", {"observation_size": 1}, replaced("initial.covariance", lambda array: -array), "is not a covariance"),
]


@pytest.mark.parametrize(("family", "config", "damage", "reason"), WEIGHTS)
def test_weights_that_do_not_fit_are_refused(
    family: str, config: dict[str, Any], damage: Callable[[dict[str, AnyArray]], object], reason: str
) -> None:
    declared, _, weights = made(family, config)
    damage(weights)
    with pytest.raises((BundleError, ValueError), match=reason):
        check(declared, weights)
