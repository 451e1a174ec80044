"""Write bundles. The files are written to a temporary directory and checked. The directory is then renamed to its final
name, and replaces an existing bundle of this name."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, Graph, check_golden, open_bundle, tensor_specs
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
from rfa.runtime.bundle.stored_kernels import is_kernel_file

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


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
    """Write a bundle, check it, and return it. An existing bundle in `directory` is replaced.

    Args:
        directory: Directory of the bundle.
        name, kind, family, config: Fields of the manifest.
        weights: Mapping from names to tensors.
        graphs: Mapping from names to graphs. Each is written to `<name>.onnx`.
        calibration: Content of calibration.json. Its field "summary" is also written to the manifest.
        golden: Content of golden.json.
        metrics, provenance: Fields of the manifest.
        state: Tensors of the recurrent state. Shapes exclude the batch.
        extra_files: Mapping from names of further files to contents.

    Raises:
        BundleError: If `open_bundle` rejects the content, or the graphs do not reproduce the golden outputs.
        FileExistsError: If `directory` is neither empty nor a bundle.
    """
    arrays = {key: np.ascontiguousarray(array) for key, array in weights.items()}
    contents = {**_documents(arrays, graphs, calibration, golden), **(extra_files or {})}
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
    return _write_checked(Path(directory), manifest, contents)


def _documents(
    arrays: Mapping[str, np.ndarray],
    graphs: Mapping[str, Graph],
    calibration: Mapping[str, Any],
    golden: Mapping[str, Any],
) -> dict[str, bytes]:
    """Return the content of the files that bundles of every kind have."""
    return {
        WEIGHTS_FILE: safetensors.numpy.save(dict(arrays)),
        CALIBRATION_FILE: canonical_json(calibration),
        GOLDEN_FILE: compact_json(golden),
        **{f"{key}.onnx": graph.model for key, graph in graphs.items()},
    }


def _write_checked(target: Path, manifest: Manifest, contents: Mapping[str, bytes]) -> Bundle:
    """Write the files to a temporary directory next to `target`, check them as a bundle, and rename the directory to
    `target`. Return the bundle."""
    _check_replaceable(target)
    encoded = encode_manifest(manifest)
    decode_manifest(encoded)  # checks the file names before a file is written
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for key, data in {**contents, MANIFEST_FILE: encoded}.items():
            _write(temporary / key, data)
        check_golden(open_bundle(temporary))
        temporary.chmod(0o755)
        _replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return open_bundle(target)


def rewrite_bundle(
    bundle: Bundle,
    target: Path,
    constants: bytes | None,
    calibration: Mapping[str, Any] | None = None,
    kernels: Mapping[str, bytes] | None = None,
) -> Bundle:
    """Write a copy of a bundle with different constants, calibration or kernels, and return the copy.

    Args:
        bundle: Bundle to copy.
        target: Directory of the copy.
        constants: Content of decoder.safetensors. If None, the copy does not contain this file.
        calibration: Content of calibration.json. If None, the calibration is copied.
        kernels: Files of compiled kernels. If None, the kernels are copied.
    """
    manifest = bundle.manifest
    extra_files = {name: bundle.read(name) for name in TOKENIZER_FILES if bundle.kind == "lm"}
    stored_kernels = {name: bundle.read(name) for name in manifest.files if is_kernel_file(name)}
    extra_files.update(stored_kernels if kernels is None else kernels)
    if constants is not None:
        extra_files[CONSTANTS_FILE] = constants
    return write_bundle(
        target,
        name=bundle.name,
        kind=bundle.kind,
        family=manifest.family,
        config=manifest.config,
        weights=bundle.weights(),
        graphs={name: Graph(bundle.read(spec.file), spec.initializers) for name, spec in manifest.graphs.items()},
        calibration=calibration or bundle.calibration,
        golden=bundle.golden,
        metrics=manifest.metrics,
        provenance=manifest.provenance,
        state=manifest.state,
        extra_files=extra_files,
    )


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
        raise FileExistsError(f"{target} exists and is not a directory; choose another path")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST_FILE).is_file():
        raise FileExistsError(f"{target} contains files but no {MANIFEST_FILE}; choose an empty directory or a bundle")


def _replace(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(old / target.name)
    temporary.rename(target)
    shutil.rmtree(old)
