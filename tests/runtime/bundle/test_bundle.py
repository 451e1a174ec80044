"""The bundle format: what is written can be read, and whatever was touched is refused before it is used."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from onnx import TensorProto, helper

from rfa.export.golden_recording import Earlier, Filled, GoldenRecorder, Stored
from rfa.export.writing import write_bundle
from rfa.runtime.bundle.bundle import (
    BundleError,
    Graph,
    Initializer,
    TensorSpec,
    check_golden,
    open_bundle,
    open_session,
)
from rfa.runtime.bundle.documents import Strict, canonical_json
from rfa.runtime.bundle.families import FAMILIES, FamilyConfig, GraphRule
from rfa.runtime.bundle.families.arrays import AnyArray, ArrayRule, Rules
from tests.runtime.bundle.test_documents import put

FLOAT = TensorProto.FLOAT
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
START = np.array([0.5, -0.25, 1.0], np.float32)


class AccumulatorCalibration(Strict):
    scale: list[float]
    summary: dict[str, float]


class AccumulatorConfig(FamilyConfig):
    """A family of these tests: sums what it is given."""

    kind: ClassVar[Literal["lm", "filter"]] = "filter"
    calibration = AccumulatorCalibration

    size: int
    rate: float

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> Rules:
        return {"weight": ArrayRule((self.size, 4)), "initial.total": ArrayRule((self.size,))}

    def derived(self, weights: Mapping[str, AnyArray]) -> Rules:
        return {}

    def state(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("total", "float32", (self.size,)),)

    def graphs(self) -> dict[str, GraphRule]:
        x, total = (TensorSpec(name, "float32", ("batch", n)) for name, n in (("x", 4), ("total", self.size)))
        rule = GraphRule((x, total), (TensorSpec("next_total", "float32", ("batch", self.size)),))
        return {"step": rule, "prefill": rule}


@pytest.fixture(scope="module", autouse=True)
def family() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, "accumulator", AccumulatorConfig)
        yield


def external(name: str, shape: tuple[int, ...], location: str = "model.safetensors") -> TensorProto:
    tensor = TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def accumulator(initializers: list[TensorProto] | None = None, domain: str = "") -> bytes:
    """next_total = total + x · weightᵀ: a graph with a state, whose only constant comes from outside."""
    nodes = [
        helper.make_node("MatMul", ["x", "weight.T"], ["y"]),
        helper.make_node("Add", ["y", "total"], ["next_total"], domain=domain),
    ]
    graph = helper.make_graph(
        nodes,
        "accumulator",
        [
            helper.make_tensor_value_info("x", FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("total", FLOAT, ["batch", 3]),
        ],
        [helper.make_tensor_value_info("next_total", FLOAT, ["batch", 3])],
        initializers if initializers is not None else [external("weight.T", (4, 3))],
    )
    opsets = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def content(**changes: Any) -> dict[str, Any]:
    """Arguments of write_bundle for a small filter bundle."""
    graph = Graph(accumulator(), (Initializer("weight.T", "weight", transposed=True),))
    weights: dict[str, np.ndarray] = {"weight": np.ascontiguousarray(WEIGHT.T), "initial.total": START}
    sessions = {name: open_session(graph, weights) for name in ("step", "prefill")}
    recorder = GoldenRecorder(sessions, weights)
    first = recorder.run(
        "step", {"x": np.ones((1, 4), np.float32), "total": Stored("initial.total")}, argmax=("next_total",)
    )
    recorder.run("prefill", {"x": Filled((1, 4), 2.0), "total": Earlier(first.case, "next_total")})
    return {
        "name": "small",
        "kind": "filter",
        "family": "accumulator",
        "config": {"size": 3, "rate": 0.1},
        "weights": weights,
        "graphs": {"step": graph, "prefill": graph},
        "calibration": {"scale": [1.0, 2.0], "summary": {"coverage": 0.9}},
        "golden": recorder.document(),
        "metrics": {"rmse": 0.25},
        "provenance": {"commit": "abc", "data": {"train.csv": "0" * 64}},
        "state": (TensorSpec("total", "float32", (3,)),),
        **changes,
    }


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundles") / "small", **content()).path


@pytest.fixture
def bundle_dir(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "small"))


def rewrite_manifest(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest as a forger would: canonical form and hash are right again."""
    document = json.loads((directory / "manifest.json").read_bytes())
    change(document)
    document.pop("content_sha256")
    document["content_sha256"] = hashlib.sha256(canonical_json(document)).hexdigest()
    (directory / "manifest.json").write_bytes(canonical_json(document))


def replace_file(directory: Path, name: str, data: bytes) -> None:
    """Swap a file's content and list its new hash, so that only a check of the content can refuse it."""
    (directory / name).write_bytes(data)

    def change(document: dict[str, Any]) -> None:
        document["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    rewrite_manifest(directory, change)


def test_what_is_written_is_read(original: Path) -> None:
    bundle = open_bundle(original)
    assert (bundle.name, bundle.kind, bundle.config) == ("small", "filter", {"size": 3, "rate": 0.1})
    assert bundle.manifest.family == "accumulator"
    assert bundle.calibration["scale"] == [1.0, 2.0]
    assert bundle.manifest.calibration == {"coverage": 0.9}
    assert bundle.manifest.state == (TensorSpec("total", "float32", (3,)),)
    np.testing.assert_array_equal(bundle.weights()["weight"], WEIGHT.T)
    assert bundle.digest == hashlib.sha256((original / "manifest.json").read_bytes()).hexdigest()


def test_same_inputs_give_the_same_bytes(original: Path, tmp_path: Path) -> None:
    again = write_bundle(tmp_path / "again", **content())
    assert sorted(path.name for path in again.path.iterdir()) == sorted(path.name for path in original.iterdir())
    for path in original.iterdir():
        assert (again.path / path.name).read_bytes() == path.read_bytes(), path.name


FILES = ("manifest.json", "calibration.json", "golden.json", "model.safetensors", "step.onnx", "prefill.onnx")


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_refused(bundle_dir: Path, name: str) -> None:
    data = (bundle_dir / name).read_bytes()
    positions = sorted({0, 1, 7, 8, len(data) // 3, len(data) // 2, len(data) - 2, len(data) - 1})
    for position in positions:
        for bit in (0, 3, 7):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            (bundle_dir / name).write_bytes(bytes(damaged))
            with pytest.raises(BundleError, match=name.replace(".", r"\.")):
                open_bundle(bundle_dir)
    (bundle_dir / name).write_bytes(data)
    assert open_bundle(bundle_dir).name == "small"


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_refused(bundle_dir: Path, name: str) -> None:
    (bundle_dir / name).unlink()
    with pytest.raises(
        BundleError,
        match="does not contain manifest.json" if name == "manifest.json" else f"{name}: the file is missing",
    ):
        open_bundle(bundle_dir)


def test_unlisted_file_is_refused(bundle_dir: Path) -> None:
    (bundle_dir / "notes.txt").write_text("hello")
    with pytest.raises(BundleError, match=r"notes\.txt: the file is not listed"):
        open_bundle(bundle_dir)


def test_folder_inside_is_refused(bundle_dir: Path) -> None:
    (bundle_dir / "cache").mkdir()
    with pytest.raises(BundleError, match="cache is not a regular file"):
        open_bundle(bundle_dir)


@pytest.mark.parametrize("name", FILES)
def test_link_is_refused_even_to_the_right_content(bundle_dir: Path, tmp_path: Path, name: str) -> None:
    (bundle_dir / name).rename(tmp_path / "elsewhere")
    (bundle_dir / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match=f"{name} is not a regular file"):
        open_bundle(bundle_dir)


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.5])
def test_other_format_version_is_refused(bundle_dir: Path, version: object) -> None:
    rewrite_manifest(bundle_dir, lambda document: document.update(format_version=version))
    with pytest.raises(BundleError, match="format_version"):
        open_bundle(bundle_dir)


def move(document: dict[str, Any]) -> None:
    document["files"]["../evil"] = document["files"]["golden.json"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("extra", 1), "extra: Extra inputs"),
        (lambda document: document.pop("metrics"), "metrics: Field required"),
        (move, "files"),
        (put("tensors", 1, "shape", [4, 3]), "weight"),
        (put("tensors", 1, "dtype", "float64"), "weight"),
        (put("files", "golden.json", "size", -1), "size"),
        (put("kind", "program"), "kind"),
        (put("graphs", "step", "initializers", []), "constants"),
        (put("graphs", "step", "inputs", 0, "shape", ["batch", 5]), r"manifest\.json: the inputs of step\.onnx"),
        (
            put("graphs", "step", "initializers", 0, "transposed", False),
            r"step\.onnx: constant 'weight\.T' is float32\[4, 3\]",
        ),
    ],
)
def test_wrong_manifest_is_refused(bundle_dir: Path, change: Callable[[dict[str, Any]], object], reason: str) -> None:
    rewrite_manifest(bundle_dir, change)
    with pytest.raises(BundleError, match=reason):
        open_bundle(bundle_dir)


def test_graphs_opened_unchecked_are_checked_before_their_session(bundle_dir: Path) -> None:
    replace_file(bundle_dir, "step.onnx", accumulator(domain="com.microsoft"))
    bundle = open_bundle(bundle_dir, with_graphs=False)
    with pytest.raises(BundleError, match=r"step\.onnx: the graph uses operators outside the standard set"):
        bundle.session("step")


def test_damaged_graph_never_reaches_the_runtime(bundle_dir: Path) -> None:
    """Random bytes with the right hash end in a BundleError, in opening or in making the session, never in a crash."""
    data = accumulator()
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(40):
        damaged = bytearray(data)
        for position in generator.integers(len(data), size=3):
            damaged[position] = generator.integers(256)
        replace_file(bundle_dir, "step.onnx", bytes(damaged))
        try:
            check_golden(open_bundle(bundle_dir))
        except BundleError:
            refused += 1
    assert refused > 30  # a changed name of a node changes nothing


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[1]", "{", '{"a": ' + "[" * 100000]
)
def test_calibration_must_be_strict_json(bundle_dir: Path, text: str) -> None:
    replace_file(bundle_dir, "calibration.json", text.encode())
    with pytest.raises(BundleError, match=r"calibration\.json"):
        open_bundle(bundle_dir)


def test_golden_outputs_are_checked(bundle_dir: Path) -> None:
    assert check_golden(open_bundle(bundle_dir)) == 6
    golden = json.loads((bundle_dir / "golden.json").read_bytes())
    golden["cases"][1]["outputs"]["next_total"]["values"][2] += 0.01
    replace_file(bundle_dir, "golden.json", canonical_json(golden))
    with pytest.raises(BundleError, match=r"golden\.json: case 1, prefill\.next_total differs by 0\.01"):
        check_golden(open_bundle(bundle_dir))


def test_another_winner_fails_the_golden_check(bundle_dir: Path) -> None:
    golden = json.loads((bundle_dir / "golden.json").read_bytes())
    assert golden["cases"][0]["outputs"]["next_total"]["argmax"] == [2]
    golden["cases"][0]["outputs"]["next_total"]["argmax"] = [1]
    replace_file(bundle_dir, "golden.json", canonical_json(golden))
    with pytest.raises(BundleError, match="does not have the expected argmax"):
        check_golden(open_bundle(bundle_dir))


def test_bundle_that_fails_its_own_check_is_not_published(tmp_path: Path) -> None:
    arguments = content()
    arguments["golden"]["cases"][0]["outputs"]["next_total"]["values"][0] += 1.0
    with pytest.raises(BundleError, match="differs"):
        write_bundle(tmp_path / "small", **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Not A Name"},
        {"kind": "program"},
        {"weights": {"weight": np.full((3, 4), np.nan, np.float32), "initial.total": START}},
        {"weights": {"initial.total": START}},
        {"extra_files": {"../x": b""}},
        {"kind": "lm"},
    ],
)
def test_unreadable_content_is_not_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BundleError):
        write_bundle(tmp_path / "small", **content(**changes))
    assert list(tmp_path.iterdir()) == []


def test_replaces_a_bundle_but_nothing_else(bundle_dir: Path, tmp_path: Path) -> None:
    assert write_bundle(bundle_dir, **content(metrics={"rmse": 0.5})).manifest.metrics == {"rmse": 0.5}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError):
        write_bundle(tmp_path / "mine", **content())
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "small"]


def test_weights_cannot_be_changed_by_a_reader(original: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        open_bundle(original).weights()["weight"][0, 0] = 1.0
