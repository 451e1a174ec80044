"""How the weights move: schedules against torch's and closed forms, groups, Muon against an SVD, the average against
numpy, and going on from a stored state.
"""

import copy
import math

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from rfa.model.language import LanguageModel
from rfa.runtime.text.config import LanguageModelConfig
from rfa.training.device import uses_bfloat16
from rfa.training.optimiser import Optimiser, OptimiserConfig, one_cycle, parameter_groups, rate_factor

STEPS = 200
SIZE = {"vocab_size": 40, "d_model": 32, "n_layers": 1, "n_heads": 2, "head_dim": 8, "n_slots": 8}
CHOICES = {
    "adam": {},
    "muon": {"optimiser": "muon"},
    "wsd": {"schedule": "wsd"},
    "ema": {"ema": 0.9},
    "all": {"optimiser": "muon", "schedule": "wsd", "decay": "sqrt", "ema": 0.9, "weight_decay": 0.1},
}


def language_model(mixer="rfa", **given):
    torch.manual_seed(0)
    frequencies = "banded" if mixer == "rfa" else "full"
    return LanguageModel(LanguageModelConfig(**SIZE, mixer=mixer, frequencies=frequencies, **given))


def learn(model, optimiser, steps, seed=0):
    """Random gradients on every parameter but the slots', as in a run of the attention mode alone."""
    for step in steps:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        optimiser.zero_grad()
        for name, parameter in model.named_parameters():
            if "initial" not in name:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimiser.step(step)


def torch_rates(scheduler_of, peak=1e-3):
    """The learning rates that a scheduler of torch gives at each step."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = scheduler_of(optimiser)
    rates = []
    for _ in range(STEPS):
        rates.append(optimiser.param_groups[0]["lr"] / peak)
        optimiser.step()
        if len(rates) < STEPS:
            scheduler.step()
    return rates


def test_one_cycle_is_torchs():
    oracle = torch_rates(
        lambda optimiser: lr_scheduler.OneCycleLR(
            optimiser, 1e-3, total_steps=STEPS, pct_start=0.05, cycle_momentum=False
        )
    )
    assert [one_cycle(step, STEPS, 0.05) for step in range(STEPS)] == pytest.approx(oracle, rel=1e-9)
    assert [rate_factor(step, OptimiserConfig(steps=STEPS)) for step in range(STEPS)] == pytest.approx(oracle, rel=1e-9)


def test_warmup_stable_decay_is_torchs_chain_of_lines():
    """Up over 20 steps, constant, and from step 60 down to 1/140 at the last of 200."""
    oracle = torch_rates(
        lambda optimiser: lr_scheduler.SequentialLR(
            optimiser,
            [
                lr_scheduler.LinearLR(optimiser, start_factor=1 / 20, total_iters=19),
                lr_scheduler.LinearLR(optimiser, start_factor=1.0, end_factor=1 / 140, total_iters=139),
            ],
            milestones=[60],
        )
    )
    config = OptimiserConfig(steps=STEPS, schedule="wsd", warmup_fraction=0.1, decay_fraction=0.7)
    assert [rate_factor(step, config) for step in range(STEPS)] == pytest.approx(oracle, rel=1e-9)


def test_square_root_decay():
    config = OptimiserConfig(steps=STEPS, schedule="wsd", decay="sqrt", warmup_fraction=0.1, decay_fraction=0.5)
    assert rate_factor(0, config) == pytest.approx(1 / 20)
    assert rate_factor(19, config) == rate_factor(99, config) == rate_factor(100, config) == 1
    assert rate_factor(125, config) == pytest.approx(0.5)  # a quarter of the way down
    assert rate_factor(STEPS - 1, config) == pytest.approx(1 - math.sqrt(0.99))


@pytest.mark.parametrize(
    ("field", "value"),
    [("optimiser", "sgd"), ("schedule", "step"), ("decay", "cosine"), ("ema", 1.0), ("ema", -0.1), ("steps", 0),
     ("matrix_learning_rate", 0.0), ("decay_fraction", 0.0)],
)  # fmt: skip
def test_a_bad_value_is_named(field, value):
    with pytest.raises(ValueError, match=rf"{field} must be .*got {value!r}"):
        OptimiserConfig(**{"steps": 10, field: value})


@pytest.mark.parametrize("mixer", ["rfa", "softmax"])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_parameter_is_in_one_group(choice, mixer):
    model = language_model(mixer)
    optimiser = Optimiser(model, OptimiserConfig(steps=STEPS, **CHOICES[choice]))
    grouped = [id(p) for part in optimiser.parts for group in part.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())


def test_sde_scalars_have_their_own_group():
    model = language_model()
    config = OptimiserConfig(steps=STEPS, weight_decay=0.1)
    decayed, rest, sde = parameter_groups(model, config)
    names = {id(p): name for name, p in model.named_parameters()}
    assert {names[id(p)] for p in sde["params"]} == {name for name in names.values() if ".dynamics." in name}
    assert (sde["betas"][0], sde["eps"], sde["peak"], sde["weight_decay"]) == (0.0, 1e-7, 5e-4, 0.0)
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert "embedding.weight" in {names[id(p)] for p in decayed["params"]}


def test_weights_and_sde_scalars_are_clipped_apart():
    model = language_model()
    config = OptimiserConfig(steps=STEPS, clip=0.7, sde_clip=1e-3)
    learn(model, Optimiser(model, config), [0])
    norms = {True: 0.0, False: 0.0}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            norms[".dynamics." in name] += float(parameter.grad.double().square().sum())
    assert math.sqrt(norms[False]) == pytest.approx(0.7, rel=1e-4)  # clip_grad_norm_ divides by the norm + 1e-6
    assert math.sqrt(norms[True]) == pytest.approx(1e-3, rel=1e-4)


def test_muon_moves_the_matrices_of_the_blocks_and_nothing_else():
    model = language_model(own_readout=True)
    model.head = torch.nn.Linear(32, 40)  # a head of its own is no matrix of a block
    adam, muon = Optimiser(model, OptimiserConfig(steps=STEPS, optimiser="muon")).parts
    names = {id(p): name for name, p in model.named_parameters()}
    moved = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    mixer = {f"blocks.0.mixer.{layer}.weight" for layer in ("query", "key", "value", "output", "gates")}
    mixer |= {f"blocks.0.mixer.{layer}.recurrent_weight" for layer in ("query", "output")}
    assert moved == mixer | {f"blocks.0.feed_forward.{layer}.weight" for layer in ("up", "down")}
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adam, torch.optim.AdamW)


def test_a_muon_step_is_along_the_polar_factor_and_as_large_as_one_of_adam():
    """The first momentum is the gradient U S Vᵀ. Newton–Schulz brings S to between 0.68 and 1.14 (Jordan et al.), in
    bfloat16, whose products of 32 terms err by some 32 · 2⁻⁹; a step of Adam has RMS 0.2 in the long run."""
    model = language_model()
    weight = model.blocks[0].feed_forward.up.weight  # [128, 32]
    before = weight.detach().double().clone()
    config = OptimiserConfig(steps=STEPS, optimiser="muon", matrix_learning_rate=0.01, weight_decay=5.0)
    learn(model, Optimiser(model, config), [5])
    rate = 0.01 * rate_factor(5, config)
    u, _, vh = torch.linalg.svd(weight.grad.double(), full_matrices=False)
    decayed = before * (1 - rate * 5.0)
    core = u.T @ (decayed - weight.detach().double()) @ vh.T / (rate * 0.2 * math.sqrt(128))
    tolerance = 32 * 2**-9
    assert 0.68 - tolerance < float(core.diagonal().min()) <= float(core.diagonal().max()) < 1.14 + tolerance
    assert float((core - torch.diag(core.diagonal())).abs().max()) < tolerance


def test_the_average_is_a_running_average():
    """Against a loop in float64; float32 rounds three times a step, each by 2⁻²⁴ of the largest weight."""
    model = language_model()
    optimiser = Optimiser(model, OptimiserConfig(steps=STEPS, ema=0.8))
    expected, largest = {}, {}
    for step in range(12):
        learn(model, optimiser, [step])
        for name, parameter in model.named_parameters():
            now = parameter.detach().double().numpy()
            expected[name] = 0.8 * expected[name] + (1 - 0.8) * now if step else now
            largest[name] = max(largest.get(name, 0.0), float(np.abs(now).max()))
    for name, parameter in optimiser.averaged.named_parameters():
        error = np.abs(parameter.detach().double().numpy() - expected[name]).max()
        assert error <= 12 * 3 * 2**-24 * largest[name], name
    moved = [not torch.equal(a, b) for a, b in zip(model.parameters(), optimiser.averaged.parameters(), strict=True)]
    assert sum(moved) > len(moved) / 2


@pytest.mark.parametrize("choice", CHOICES)
def test_going_on_from_a_state_equals_not_stopping(choice):
    config = OptimiserConfig(steps=STEPS, **CHOICES[choice])
    whole = language_model()
    whole_optimiser = Optimiser(whole, config)
    learn(whole, whole_optimiser, range(4))
    state, saved = whole_optimiser.state(), copy.deepcopy(whole_optimiser.averaged)
    assert not any(name.startswith("exp_avg.") and "initial" in name for name in state)  # no gradient, no state
    state = {name: tensor.clone() for name, tensor in state.items()}
    learn(whole, whole_optimiser, range(4, 8))
    again_optimiser = Optimiser(saved, config)
    again_optimiser.load_state(state)
    learn(saved, again_optimiser, range(4, 8))
    for pair in ((whole, saved), (whole_optimiser.averaged, again_optimiser.averaged)):
        for (name, a), b in zip(pair[0].named_parameters(), pair[1].parameters(), strict=True):
            assert torch.equal(a, b), name


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [({}, False), ({"avx512_f": True}, False), ({"avx512_bf16": True}, True), ({"amx_bf16": True}, True)],
)
def test_auto_computes_in_bfloat16_where_the_processor_multiplies_it(monkeypatch, hardware, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: hardware)
    assert uses_bfloat16("auto", torch.device("cpu")) is expected
    assert uses_bfloat16("bf16", torch.device("cpu"))
    assert not uses_bfloat16("fp32", torch.device("cpu"))
