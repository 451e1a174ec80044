"""Graphs that would read, run, take or confuse what they must not are refused before a runtime sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest

from rfa.runtime.bundle.bundle import BundleError, open_bundle
from rfa.runtime.bundle.graph_check import check_graph
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.bundle.manifest import GraphSpec, TensorSpec
from rfa.runtime.bundle.onnx_wire import SCHEMA, decode, encode
from tests.soak.bundles.graph_parts import Mutation, edited
from tests.soak.bundles.graphs import FOR_THE_READER
from tests.soak.bundles.trial_graphs import FOR_THE_TRIAL

BUNDLES = ("oscillator", "books")


def parts(name: str, graph: str) -> tuple[bytes, GraphSpec, dict[str, TensorSpec]]:
    bundle = open_bundle(BUNDLE_ROOT / name)
    spec = bundle.manifest.graphs[graph]
    return bundle.read(spec.file), spec, {tensor.name: tensor for tensor in bundle.manifest.tensors}


@pytest.fixture(scope="module")
def check() -> Callable[[Mutation], object]:
    data, spec, tensors = parts("oscillator", "step")

    def mutated(mutation: Mutation) -> object:
        model = onnx.ModelProto.FromString(data)
        return check_graph(mutation(model), spec, tensors)

    return mutated


@pytest.mark.parametrize("name", FOR_THE_READER)
def test_a_malicious_graph_is_refused(check: Callable[[Mutation], object], name: str) -> None:
    with pytest.raises(BundleError, match=r"^step\.onnx: ") as refusal:
        check(FOR_THE_READER[name])
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("name", FOR_THE_TRIAL)
def test_the_reader_cannot_know_what_only_a_trial_shows(check: Callable[[Mutation], object], name: str) -> None:
    """Else the trial of these would show nothing: `service/test_bundle_checks.py` tries them."""
    check(FOR_THE_TRIAL[name])


def test_the_real_graph_passes(check: Callable[[Mutation], object]) -> None:
    """So that what is refused is refused for its mutation."""
    check(edited(lambda model: None))


@pytest.mark.parametrize("name", BUNDLES)
def test_what_is_checked_is_what_is_run(name: str) -> None:
    bundle = open_bundle(BUNDLE_ROOT / name)
    for graph, spec in bundle.manifest.graphs.items():
        data, _, tensors = parts(name, graph)
        check_graph(data, spec, tensors)
        assert data == encode(decode(data, spec.file))


def test_messages_and_fields_are_those_of_onnx() -> None:
    """Against onnx's own description: number, name, form, and whether a field may repeat."""
    roots: dict[str, Any] = {
        "model": onnx.ModelProto, "opset": onnx.OperatorSetIdProto, "graph": onnx.GraphProto, "node": onnx.NodeProto,
        "attribute": onnx.AttributeProto, "tensor": onnx.TensorProto, "entry": onnx.StringStringEntryProto,
        "value": onnx.ValueInfoProto, "type": onnx.TypeProto, "tensor_type": onnx.TypeProto.Tensor,
        "shape": onnx.TensorShapeProto, "dim": onnx.TensorShapeProto.Dimension,
    }  # fmt: skip
    assert set(roots) == set(SCHEMA)
    for kind, fields in SCHEMA.items():
        descriptors = roots[kind].DESCRIPTOR.fields_by_number
        for number, field in fields.items():
            assert descriptors[number].name == field.name, (kind, number)
            assert descriptors[number].is_repeated == field.is_repeated, (kind, number)
            if field.kind == "message":
                assert descriptors[number].message_type is roots[field.message].DESCRIPTOR, (kind, number)
