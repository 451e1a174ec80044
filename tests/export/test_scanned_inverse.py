"""The loop of the graph that inverts large matrices, against NumPy."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from rfa.export.onnx_graphs import export_graph
from rfa.model.recurrence.inverse import MOST_UNROLLED, spd_inverse
from rfa.runtime.bundle.bundle import open_session


class Inverse(nn.Module):
    def forward(self, matrix):
        return spd_inverse(matrix)


@pytest.mark.parametrize("size", [pytest.param(MOST_UNROLLED, marks=pytest.mark.slow), 9])
def test_the_graph_s_inverse_and_determinant_are_those_of_numpy(size):
    example = {"matrix": torch.eye(size).repeat(2, 3, 1, 1)}
    graph = export_graph(Inverse(), example, ["inverse", "log_det"], dynamic={"matrix": {0: "batch", 1: "cache"}})
    operators = {node.op_type for node in onnx.ModelProto.FromString(graph.model).graph.node}
    assert ("Scan" in operators) == (size > MOST_UNROLLED)
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 7, size, size + 4)).astype(np.float32)
    matrix = root @ root.swapaxes(-1, -2) / size
    inverse, log_det = open_session(graph, {}).run(["inverse", "log_det"], {"matrix": matrix})
    exact = np.linalg.inv(matrix.astype(np.float64))
    # Gauss-Jordan on a positive definite matrix: a few roundings a sweep, amplified by the condition.
    condition = np.linalg.cond(matrix.astype(np.float64)).max()
    assert np.abs(inverse - exact).max() <= 2 * size * 2**-24 * condition * np.abs(exact).max()
    assert np.abs(log_det - np.linalg.slogdet(matrix.astype(np.float64))[1]).max() <= 1e-4
