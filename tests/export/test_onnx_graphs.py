"""torch → ONNX without weights, on a module that has every difficulty in one line each."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from torch.onnx import OnnxExporterError

from rfa.export.onnx_graphs import export_graph
from rfa.runtime.bundle.bundle import Graph, Initializer, open_session


class Tied(nn.Module):
    """A tied embedding, a constrained scalar, an untied projection, and a phase that needs float64."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(11, 6)
        self.project = nn.Linear(6, 6, bias=False)
        self.scale_raw = nn.Parameter(torch.randn(6))
        self.register_buffer("omega", torch.linspace(0.1, 1, 6, dtype=torch.float64), persistent=False)

    def forward(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        phase = position.to(torch.float64)[:, None] * self.omega
        turn = 2 * math.pi
        phase = (phase - turn * torch.round(phase / turn)).float()
        x = self.project(self.embedding(token)) * nn.functional.softplus(self.scale_raw) * torch.cos(phase)
        return nn.functional.linear(x, self.embedding.weight), phase


def export(module: nn.Module) -> Graph:
    inputs = {"token": torch.zeros(2, dtype=torch.int64), "position": torch.zeros(2, dtype=torch.int64)}
    dynamic = {name: {0: "batch"} for name in inputs}
    return export_graph(module.requires_grad_(False), inputs, ("logits", "phase"), dynamic=dynamic)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return export(Tied(0))


def test_needs_exactly_the_weights(graph: Graph) -> None:
    assert graph.initializers == (
        Initializer("embedding.weight", "embedding.weight"),
        Initializer("embedding.weight.T", "embedding.weight", transposed=True),
        Initializer("project.weight", "project.weight"),
        Initializer("scale_raw", "scale_raw"),
    )


def test_structure_alone_makes_the_bytes(graph: Graph) -> None:
    assert export(Tied(1)) == graph


def test_computes_with_the_weights_it_is_given(graph: Graph) -> None:
    module = Tied(2)
    session = open_session(graph, {name: tensor.numpy() for name, tensor in module.state_dict().items()})
    token, position = np.array([3, 0, 10]), np.array([0, 7, 123_456_789])
    logits, phase = session.run(None, {"token": token, "position": position})
    with torch.no_grad():
        expected = module(torch.from_numpy(token), torch.from_numpy(position))
    np.testing.assert_allclose(logits, expected[0], atol=1e-5)
    np.testing.assert_allclose(phase, expected[1], atol=1e-6)


class Plain(nn.Module):
    """Every operator that `TABLE` translates."""

    def forward(self, x: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        is_inside = (x > -1) & (x < 1) | (x > 2)
        kept = torch.diag_embed(1 - x.square())
        turned = torch.rsub(x, 0.25, alpha=3)
        steps = torch.diff(x, dim=1, prepend=torch.zeros_like(x[:, :1]))
        normed = rms_norm(x, [3], torch.full((3,), 1.5), 1e-6)
        chosen = torch.where(is_inside, turned, steps)
        return kept @ kept.mT - torch.eye(3), x.T, chosen, count.to(torch.float32), normed


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (2 * x).add_(1)


class Determinant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.slogdet(x[..., None] * x[..., None, :] + torch.eye(3))[1]


def test_translated_operators_compute_what_torch_does() -> None:
    inputs = {"x": torch.zeros(2, 3), "count": torch.zeros(2, dtype=torch.int64)}
    names, dynamic = ("matrix", "reversed", "chosen", "real", "normed"), {name: {0: "batch"} for name in inputs}
    rng = np.random.default_rng(0)
    made = export_graph(Plain(), inputs, names, dynamic=dynamic)
    for batch in (1, 5):
        given = {"x": rng.normal(size=(batch, 3)).astype(np.float32), "count": np.arange(batch)}
        expected = Plain()(*(torch.from_numpy(array) for array in given.values()))
        found = open_session(made, {}).run(list(names), given)
        for name, actual, target in zip(names, found, expected, strict=True):
            # Products of three numbers, in any order. A norm has half of the five roundings of its mean square, and
            # those of a root, a reciprocal and two products, on both sides.
            roundings = 13 if name == "normed" else 4
            np.testing.assert_allclose(actual, target.numpy(), rtol=roundings * 2**-24, atol=roundings * 2**-24)


@pytest.mark.parametrize(
    ("module", "error", "reason"),
    [
        (InPlace(), ValueError, "add_.Tensor changes a tensor"),
        pytest.param(Determinant(), OnnxExporterError, "ONNX", marks=pytest.mark.slow),
    ],
)
def test_an_operator_without_a_translation_is_refused(module: nn.Module, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        export_graph(module, {"x": torch.zeros(2, 3)}, ["y"], dynamic={"x": {0: "batch"}})


def test_leaves_no_traces_of_the_machine(graph: Graph) -> None:
    assert b".py" not in graph.model
    assert b"stack_trace" not in graph.model
    assert len(graph.model) < 4000


def test_refuses_to_leave_a_large_constant_in_the_graph() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(300, 300), persistent=False)

        def forward(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
            return self.table[token], position

    with pytest.raises(ValueError, match="was left in the graph"):
        export(Table())
