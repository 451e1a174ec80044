"""The kernels of a decode step: against eager code in float64, and against the scan and themselves, bit for bit.

They run on a GPU where there is one, else in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from rfa.model.dynamics import rotate
from rfa.model.recurrence.slots_reference import SlotInputs, SlotOptions, SlotParameters, slot_step
from rfa.runtime.text.config import Innovation
from tests.model.test_slots import make
from tests.rounding import assert_within_rounding, relative_error

pytest.importorskip("triton")

from rfa.model import decoder_triton as kernels
from rfa.model.product_triton import Norm
from rfa.model.recurrence.triton import size_refusal, slot_scan_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-6  # of the norms
POOL = 7  # rows
SOURCES, TARGETS = (4, 0, 6), (1, 2, 3)
# Heads, slots, complex dims: no powers of two; those of `books`; one slot.
SHAPES = [(2, 5, 6), (1, 16, 32), (3, 1, 2)]


class Layer(NamedTuple):
    """All that the slots of a layer take, of as many streams as there are sources."""

    joint: Tensor
    phase: Tensor  # [B, H, D]
    means: Tensor
    precisions: Tensor
    bias: Tensor
    eta2: Tensor
    own_process: Tensor
    output_bias: Tensor
    noise: Tensor
    parameters: SlotParameters

    def cast(self, change: Any) -> Layer:
        *tensors, parameters = self
        return Layer(*map(change, tensors), SlotParameters(*map(change, parameters)))


def layer_of(heads: int, slots: int, dims: int) -> Layer:
    """Drawn in float64; some gates lie beyond their range."""
    _, means, precisions, parameters = make(POOL, 1, heads, slots, dims)
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows, width = len(SOURCES), 2 * dims
    gates = torch.cat([normal(rows, 2 * heads * slots) * 4, normal(rows, heads)], dim=1)
    return Layer(
        joint=torch.cat([normal(rows, 3 * heads * width), gates], dim=1),
        phase=3 * normal(rows, heads, dims),
        means=means,
        precisions=precisions,
        bias=normal(2 * heads * slots),
        eta2=normal(heads).exp(),
        own_process=0.1 * normal(heads, slots).exp(),
        output_bias=normal(heads),
        noise=normal(rows, heads, width),
        parameters=parameters,
    ).cast(lambda x: x.to(DEVICE))


def eager(layer: Layer, inner: int, innovation: Innovation, is_gated: bool) -> dict[str, Tensor]:
    """In the dtype of the layer."""
    rows, heads, dims = layer.phase.shape
    slots, sources = layer.own_process.shape[1], list(SOURCES)
    vectors, gates, opened = layer.joint.split([6 * heads * dims, 2 * heads * slots, heads], dim=1)
    q, k, v = (rotate(x, -layer.phase) for x in vectors.reshape(rows, 3, heads, 2 * dims).unbind(1))
    write, forget = torch.exp((gates + layer.bias).clamp(-12.0, 8.0)).reshape(rows, 2, heads, slots).unbind(1)
    token = SlotInputs(q, k, v, write / layer.eta2[:, None], layer.own_process + 0.1 * forget)
    readout, means, precisions = slot_step(
        token,
        layer.means[sources],
        layer.precisions[sources],
        layer.parameters,
        SlotOptions(inner, innovation),
    )
    spread = torch.sqrt((1 / readout.precision + layer.parameters.gamma2) / 2)
    latent = rotate(readout.out, layer.phase) + layer.noise * spread[..., None]
    # Autograd's modes see no sigmoid: 1 / (1 + e^-x) is what is rounded.
    mixed = latent / (1 + torch.exp(-opened - layer.output_bias))[..., None] if is_gated else latent
    return {
        "latent": latent, "mixed": mixed.flatten(1), "evidence": readout.precision, "means": means,
        "precisions": precisions,
    }  # fmt: skip


def fused(
    layer: Layer,
    inner: int,
    innovation: Innovation,
    is_gated: bool,
    *,
    sources: tuple[int, ...] = SOURCES,
    targets: tuple[int, ...] = TARGETS,
    dtype: torch.dtype = torch.float32,
) -> tuple[dict[str, Tensor], Layer, Tensor]:
    """By the kernel in float32, on a copy of the pool; also that copy, and the flags of broken slots."""
    turn = kernels.Turned(layer.phase.cos().float(), layer.phase.sin().float())
    layer = layer.cast(lambda x: x.float().clone())
    rows, heads, dims = layer.phase.shape
    given = layer.joint if is_gated else layer.joint[:, :-heads].contiguous()
    outcome = kernels.Outcome.empty(rows, 1, heads, 2 * dims, layer.joint.device)
    rows_read, rows_written = torch.tensor(sources, device=DEVICE), torch.tensor(targets, device=DEVICE)
    pool = kernels.PoolRows(layer.means, layer.precisions, rows_read, rows_written)
    mixed = kernels.step_slots(
        given, turn, kernels.Gates(layer.bias, layer.eta2, layer.own_process, layer.output_bias if is_gated else None),
        layer.parameters, pool, outcome,
        noise=layer.noise, index=0, inner=inner, innovation=innovation, dtype=dtype,
    )  # fmt: skip
    held = [min(max(row, 0), POOL - 1) for row in targets]
    found = {
        "latent": outcome.latent, "mixed": mixed, "evidence": outcome.evidence, "means": layer.means[held],
        "precisions": layer.precisions[held],
    }  # fmt: skip
    return found, layer, outcome.broken[0]


def assert_slots_match(
    shape: tuple[int, int, int], inner: int = 1, innovation: Innovation = "key", is_gated: bool = False
) -> None:
    layer = layer_of(*shape)
    exact = eager(layer, inner, innovation, is_gated)
    found, _, broken = fused(layer, inner, innovation, is_gated)

    def errors(values: dict[str, Tensor]) -> dict[str, float]:
        return {name: relative_error(values[name], expected) for name, expected in exact.items()}

    single = layer.cast(lambda x: x.float())
    assert_within_rounding(errors(found), lambda: errors(eager(single, inner, innovation, is_gated)), torch.float32)
    assert not broken.any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_slots_of_a_layer(shape: tuple[int, int, int]) -> None:
    assert_slots_match(shape)


@pytest.mark.parametrize(
    ("inner", "innovation", "is_gated"), [(1, "value", False), (1, "key", True), (2, "key", False), (3, "value", True)]
)
def test_every_option_of_the_slots(inner: int, innovation: Innovation, is_gated: bool) -> None:
    assert_slots_match(SHAPES[0], inner, innovation, is_gated)


@pytest.mark.usefixtures("functions_off")
def test_slots_on_any_processor() -> None:
    assert_slots_match(SHAPES[0], 2, "key", True)


def assert_slots_are_the_scan(inner: int, innovation: Innovation) -> None:
    """What the kernel makes of the joint product is exact at position 0 and where gates are 0: then both have the same
    inputs, and must leave the same bits."""
    layer = layer_of(2, 16, 32)
    rows, heads, dims = layer.phase.shape
    layer.phase.zero_(), layer.bias.zero_(), layer.noise.zero_()
    layer.joint[:, 6 * heads * dims :] = 0
    found, after, _ = fused(layer, inner, innovation, False)
    single = layer.cast(lambda x: x.float())
    q, k, v = single.joint[:, : 6 * heads * dims].reshape(rows, 1, 3, heads, 2 * dims).unbind(2)
    measurement = (1 / single.eta2)[:, None].expand(rows, 1, heads, 16)
    process = (single.own_process + torch.tensor(0.1)).expand(rows, 1, heads, 16)
    sources, targets = list(SOURCES), list(TARGETS)
    readout, means, precisions = slot_scan_triton(
        SlotInputs(q, k, v, measurement, process), single.means[sources], single.precisions[sources],
        single.parameters, SlotOptions(inner, innovation),
    )  # fmt: skip
    assert torch.equal(after.means[targets], means) and torch.equal(after.precisions[targets], precisions)
    assert torch.equal(found["latent"], readout.out[:, 0]) and torch.equal(found["evidence"], readout.precision[:, 0])


@pytest.mark.parametrize(("inner", "innovation"), [(1, "key"), (3, "value")])
def test_slots_are_the_scan_of_prompts(inner: int, innovation: Innovation) -> None:
    assert_slots_are_the_scan(inner, innovation)


def test_a_row_does_not_depend_on_its_company() -> None:
    layer = layer_of(*SHAPES[0])
    together, _, _ = fused(layer, 1, "key", True)
    for i in range(len(SOURCES)):
        alone = layer._replace(joint=layer.joint[i : i + 1], phase=layer.phase[i : i + 1], noise=layer.noise[i : i + 1])
        found, _, _ = fused(alone, 1, "key", True, sources=SOURCES[i : i + 1], targets=TARGETS[i : i + 1])
        for name, part in found.items():
            assert torch.equal(part[0], together[name][i]), name
    x = torch.randn(3, 96, device=DEVICE)
    many = [*rows_by_kernels(x)]
    for i in range(3):
        for part, whole in zip(rows_by_kernels(x[i : i + 1]), many, strict=True):
            assert torch.equal(part[0], whole[i])


def test_only_targets_are_written() -> None:
    layer = layer_of(*SHAPES[0])
    _, after, _ = fused(layer, 1, "key", False)
    kept = [row for row in range(POOL) if row not in TARGETS]
    for part, before in ((after.means, layer.means), (after.precisions, layer.precisions)):
        assert torch.equal(part[kept], before[kept].float())
        assert (part[list(TARGETS)] != before[list(TARGETS)].float()).flatten(1).any(1).all()


def test_a_stream_may_stay_in_its_row() -> None:
    layer = layer_of(*SHAPES[0])
    between, _, _ = fused(layer, 1, "key", False)
    within, _, _ = fused(layer, 1, "key", False, targets=SOURCES)
    assert all(torch.equal(within[name], part) for name, part in between.items())


@pytest.mark.parametrize("what", ["means", "precisions", "joint"])
def test_what_is_not_finite_stays_in_its_row(what: str) -> None:
    layer = layer_of(*SHAPES[0])
    clean, _, _ = fused(layer, 1, "key", False)
    getattr(layer, what)[1 if what == "joint" else SOURCES[1]].view(-1)[-4] = torch.nan
    found, _, broken = fused(layer, 1, "key", False)
    assert broken.any(1).tolist() == [False, True, False]
    assert found["latent"][1].isnan().any()
    for name, part in clean.items():
        assert torch.equal(found[name][[0, 2]], part[[0, 2]]), name


@pytest.mark.parametrize(("sources", "targets"), [((4, -1, 6), TARGETS), (SOURCES, (1, POOL, 3))], ids=str)
def test_rows_that_the_pool_does_not_have(sources: tuple[int, ...], targets: tuple[int, ...]) -> None:
    layer = layer_of(*SHAPES[0])
    found, after, broken = fused(layer, 1, "key", False, sources=sources, targets=targets)
    assert found["latent"][1].isnan().all() and found["evidence"][1].isnan().all() and broken[1].all()
    assert not found["latent"][[0, 2]].isnan().any() and not broken[[0, 2]].any()
    written = (after.means != layer.means.float()).flatten(1).any(1).nonzero()[:, 0].tolist()
    assert written == [1, 3]


# What goes over rows.


def rows_by_kernels(x: Tensor) -> Iterator[Tensor]:
    """What every other kernel makes of rows `[B, d]`."""
    rows, width = x.shape
    embedding = x.clone()
    tokens = torch.arange(rows, device=x.device)
    omega = torch.linspace(0, 3, 2 * 6, dtype=torch.float64, device=x.device).reshape(2, 6)
    start, turn = kernels.begin(tokens, torch.full_like(tokens, 999), embedding, 16.0, omega)
    yield from (start, *turn)
    outcome = kernels.Outcome(x.new_zeros(rows, 4, 1), x[:, :4].exp(), (x[:, :4] < -9).int().expand(3, rows, 4))
    norm, matrix = Norm(torch.linspace(0.5, 2, width, device=x.device), EPS), torch.eye(width, device=x.device)
    yield from kernels.compute_logits(start, norm, matrix, outcome._replace(broken=outcome.broken.contiguous()))


def assert_rows_match(width: int) -> None:
    x = torch.randn(3, width, dtype=torch.float64).to(DEVICE).float().double()
    weight = torch.linspace(0.5, 2, width, device=DEVICE).double()

    def by_torch(x: Tensor) -> dict[str, Tensor]:
        def norm(x: Tensor) -> Tensor:
            mean = x.square().sum(-1, keepdim=True) / width
            return x / torch.sqrt(mean + EPS) * weight.to(x)

        return {"start": 16 * x, "logits": norm(16 * x), "log precision": torch.log(torch.exp(x[:, :4])).sum(-1) / 4}

    start, _, _, logits, log_precision, _ = rows_by_kernels(x.float())
    values = dict(zip(by_torch(x), (start, logits, log_precision), strict=True))
    exact = by_torch(x)

    def errors(found: dict[str, Tensor]) -> dict[str, float]:
        return {name: relative_error(part, exact[name]) for name, part in found.items()}

    assert_within_rounding(errors(values), lambda: errors(by_torch(x.float())), torch.float32)


@pytest.mark.parametrize("width", [1, 96, 256])
def test_what_is_done_to_rows(width: int) -> None:
    assert_rows_match(max(width, 4))


def assert_turns_match() -> None:
    """Every quarter, at the edges between them, and late in a stream."""
    omega = torch.cat([torch.linspace(-7, 7, 99), torch.pi / 4 * torch.arange(-12, 13)]).double()[None].to(DEVICE)
    positions = torch.tensor([0, 1, 2, 17, 999, 1_000_003], device=DEVICE)
    embedding = torch.zeros(1, 4, device=DEVICE)
    _, turn = kernels.begin(torch.zeros_like(positions), positions, embedding, 1.0, omega)
    phase = omega * positions[:, None, None]
    # The polynomials are off by an ulp; so is a phase of 10^7, in float64, by far less.
    for found, expected in ((turn.cos, phase.cos()), (turn.sin, phase.sin())):
        assert float((found - expected).abs().max()) <= torch.finfo(torch.float32).eps


def test_cosine_and_sine() -> None:
    assert_turns_match()


def test_a_token_that_there_is_not_is_nan() -> None:
    embedding = torch.ones(5, 8, device=DEVICE)
    tokens, omega = torch.tensor([4, 5, -1], device=DEVICE), torch.ones(1, 2, dtype=torch.float64, device=DEVICE)
    x, _ = kernels.begin(tokens, 0 * tokens, embedding, 1.0, omega)
    assert x.isnan().all(1).tolist() == [False, True, True] and not x[0].isnan().any()


def test_a_row_is_finite_where_all_of_its_layers_are() -> None:
    broken = torch.zeros(3, 4, 2, dtype=torch.int32, device=DEVICE)
    broken[2, 1, 0] = broken[0, 3, 1] = 1
    ones = torch.ones(4, 2, device=DEVICE)
    outcome = kernels.Outcome(ones, ones, broken)
    x, norm = torch.ones(4, 8, device=DEVICE), Norm(torch.ones(8, device=DEVICE), EPS)
    _, log_precision, is_finite = kernels.compute_logits(x, norm, torch.ones(5, 8, device=DEVICE), outcome)
    assert is_finite.tolist() == [1, 0, 1, 0] and not log_precision.any()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((33, 64, 1), "up to 32 slots, got 33"),
        ((16, 130, 1), "up to 128 real dimensions, got 130"),
        ((16, 64, 4), "got inner=4"),
    ],
)
def test_what_the_kernels_refuse(given: tuple[int, int, int], reason: str) -> None:
    assert reason in (size_refusal(*given) or "") and size_refusal(32, 128, 3) is None
