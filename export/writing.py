"""Writing a bundle: whole and checked, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from rfa.runtime.bundle.bundle import Bundle, Graph, check_golden, open_bundle, tensor_specs
from rfa.runtime.bundle.documents import canonical_json, compact_json, sha256
from rfa.runtime.bundle.families.check import CALIBRATION_FILE, WEIGHTS_FILE
from rfa.runtime.bundle.golden import GOLDEN_FILE
from rfa.runtime.bundle.graph_check import read_graph
from rfa.runtime.bundle.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    FileSpec,
    GraphSpec,
    Kind,
    Manifest,
    TensorSpec,
    decode_manifest,
    encode_manifest,
)


def write_bundle(
    directory: str | Path,
    *,
    name: str,
    kind: Kind,
    family: str,
    config: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    graphs: Mapping[str, Graph],
    calibration: Mapping[str, Any],
    golden: Mapping[str, Any],
    metrics: Mapping[str, Any],
    provenance: Mapping[str, Any],
    state: Sequence[TensorSpec] = (),
    extra_files: Mapping[str, bytes] | None = None,
) -> Bundle:
    """Write a bundle: into a temporary sibling, opened and run against its golden outputs, then renamed into place.

    The same inputs give the same bytes. An older bundle at `directory` is replaced; anything else there is left alone.

    Args:
        weights: tensors by name, float32 or float64 or integers; they include what graphs refer to.
        graphs: by name ("step", …); each becomes `<name>.onnx`.
        calibration: content of calibration.json; its "summary", if any, is repeated in the manifest.
        golden: content of golden.json, as `rfa.runtime.bundle.golden.GoldenRecorder` makes it.
        state: what the recurrence carries, shapes without the batch.
        extra_files: further files by name (an lm has tokenizer.json and tokenizer_config.json).

    Raises:
        BundleError: content that `open_bundle` would refuse, or golden outputs that the graphs do not give.
        FileExistsError: `directory` holds something that is no bundle.
    """
    target = Path(directory)
    _check_replaceable(target)
    arrays = {key: np.ascontiguousarray(array) for key, array in weights.items()}
    contents = {
        WEIGHTS_FILE: safetensors.numpy.save(arrays),
        CALIBRATION_FILE: canonical_json(calibration),
        GOLDEN_FILE: compact_json(golden),
        **{f"{key}.onnx": graph.model for key, graph in graphs.items()},
        **(extra_files or {}),
    }
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        kind=kind,
        family=family,
        config=dict(config),
        state=tuple(state),
        tensors=tensor_specs(arrays),
        graphs={key: _graph_spec(key, graph, arrays) for key, graph in sorted(graphs.items())},
        files={key: FileSpec(len(data), sha256(data)) for key, data in sorted(contents.items())},
        calibration=dict(calibration.get("summary", {})),
        metrics=dict(metrics),
        provenance=dict(provenance),
    )
    contents[MANIFEST_FILE] = encode_manifest(manifest)
    decode_manifest(contents[MANIFEST_FILE])  # names of files among it, before one is written
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for key, data in contents.items():
            _write(temporary / key, data)
        check_golden(open_bundle(temporary))
        temporary.chmod(0o755)
        _replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return open_bundle(target)


def _graph_spec(name: str, graph: Graph, weights: Mapping[str, np.ndarray]) -> GraphSpec:
    file = f"{name}.onnx"
    tensors = {spec.name: spec for spec in tensor_specs(weights)}
    found = read_graph(graph.model, file, graph.initializers, tensors)
    return GraphSpec(file, found.inputs, found.outputs, tuple(sorted(graph.initializers, key=lambda entry: entry.name)))


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def _check_replaceable(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise FileExistsError(f"{target} exists and is no folder")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST_FILE).is_file():
        raise FileExistsError(f"{target} holds something that is no bundle; choose another folder")


def _replace(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(old / target.name)
    temporary.rename(target)
    shutil.rmtree(old)
