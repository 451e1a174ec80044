"""The manifest of a bundle: what it declares, read strictly and written in one canonical form.

The canonical form (sorted keys, two-space indent, ASCII, one newline at the end) makes every byte of manifest.json
count: `content_sha256` covers all other fields, and a file that is not the canonical form of its own content is
refused. So one flipped bit anywhere in it, even in its white space, is seen. A hash is no signature: it finds damage,
not a forger who rewrites the manifest as well.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
# Optional, and the one file that the manifest does not list: it signs the manifest.
SIGNATURE_FILE = "manifest.json.minisig"
KINDS = ("lm", "filter")
DTYPES = ("float64", "float32", "int64", "int32", "bool")
MAX_MANIFEST_BYTES = 4 << 20

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TENSOR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BundleError(ValueError):
    """A bundle is refused; the message names the file and the reason."""


@dataclass(frozen=True)
class TensorSpec:
    """A named array: an integer in `shape` is fixed, a string is a dimension that may vary."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class FileSpec:
    size: int
    sha256: str


@dataclass(frozen=True)
class Initializer:
    """A constant that a graph gets at load: tensor `tensor` of model.safetensors, transposed if said so."""

    name: str
    tensor: str
    transposed: bool = False


@dataclass(frozen=True)
class GraphSpec:
    """An ONNX graph of the bundle: its file, its interface, and the constants that it gets at load."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    initializers: tuple[Initializer, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything that manifest.json says.

    Args:
        family: which model class made it (`rfa.model.checkpoint.FAMILIES`); config: that class's configuration.
        state: what the recurrence carries from step to step, shapes without the batch.
        tensors: content of model.safetensors. files: every other file of the bundle.
        calibration: the summary of calibration.json. metrics, provenance: free-form JSON for people.
    """

    format_version: int
    name: str
    kind: str
    family: str
    config: dict[str, Any]
    state: tuple[TensorSpec, ...]
    tensors: tuple[TensorSpec, ...]
    graphs: dict[str, GraphSpec]
    files: dict[str, FileSpec]
    calibration: dict[str, Any]
    metrics: dict[str, Any]
    provenance: dict[str, Any]


def parse_json(data: bytes, file: str) -> Any:
    """JSON without NaN, Infinity or duplicate keys.

    Raises:
        BundleError: anything else.
    """

    def refuse(constant: str) -> float:
        raise ValueError(f"the number {constant}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a duplicate key")
        return found

    def finite(text: str) -> float:
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError("a number out of range")
        return value

    try:
        text = data.decode("utf-8")
        return json.loads(text, parse_constant=refuse, parse_float=finite, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file}: not strict JSON: {error}") from None


def canonical_json(document: Any) -> bytes:
    """The one byte form of a JSON document.

    Raises:
        ValueError: a number that is not finite.
    """
    text = json.dumps(document, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False)
    return (text + "\n").encode("ascii")


def compact_json(document: Any) -> bytes:
    """The same without white space, for long lists of numbers."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of manifest.json."""
    content = {
        "format_version": manifest.format_version,
        "name": manifest.name,
        "kind": manifest.kind,
        "family": manifest.family,
        "config": manifest.config,
        "state": [_tensor_document(spec) for spec in manifest.state],
        "tensors": [_tensor_document(spec) for spec in manifest.tensors],
        "graphs": {name: _graph_document(graph) for name, graph in manifest.graphs.items()},
        "files": {name: {"size": spec.size, "sha256": spec.sha256} for name, spec in manifest.files.items()},
        "calibration": manifest.calibration,
        "metrics": manifest.metrics,
        "provenance": manifest.provenance,
    }
    return canonical_json({**content, "content_sha256": sha256(canonical_json(content))})


def decode_manifest(data: bytes) -> Manifest:
    """Read manifest.json, checking form, hash, version and every field.

    Raises:
        BundleError: with the field and the reason.
    """
    document = parse_json(data, MANIFEST_FILE)
    if not isinstance(document, dict):
        raise BundleError(f"{MANIFEST_FILE}: must be an object")
    version = document.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise BundleError(f"{MANIFEST_FILE}: format_version is {version!r}, this program reads {FORMAT_VERSION}")
    if canonical_json(document) != data:
        raise BundleError(f"{MANIFEST_FILE}: not in canonical form (damaged or edited)")
    stated = document.pop("content_sha256", None)
    if stated != sha256(canonical_json(document)):
        raise BundleError(f"{MANIFEST_FILE}: content_sha256 does not match the content (damaged or edited)")
    return _manifest(document)


def check_name(value: object) -> str:
    """A bundle name: lower-case letters, digits, `.`, `_`, `-`; at most 64."""
    return _text(value, "name", _NAME)


def check_file_name(value: object) -> str:
    return _text(value, "file name", _FILE_NAME)


def _tensor_document(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}


def _graph_document(graph: GraphSpec) -> dict[str, Any]:
    return {
        "file": graph.file,
        "inputs": [_tensor_document(spec) for spec in graph.inputs],
        "outputs": [_tensor_document(spec) for spec in graph.outputs],
        "initializers": [
            {"name": entry.name, "tensor": entry.tensor, "transposed": entry.transposed} for entry in graph.initializers
        ],
    }


def _refuse(where: str, expected: str, value: object) -> BundleError:
    return BundleError(f"{MANIFEST_FILE}: {where} must be {expected}, got {str(value)[:80]!r}")


def _text(value: object, where: str, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _refuse(where, f"a string like {pattern.pattern}", value)
    return value


def _integer(value: object, where: str, low: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise _refuse(where, f"an integer >= {low}", value)
    return value


def _object(value: object, where: str, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(where, "an object", value)
    if keys is not None and set(value) != set(keys):
        raise _refuse(where, f"an object with exactly {sorted(keys)}", sorted(value))
    return value


def _list(value: object, where: str, item: Callable[[object, str], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _refuse(where, "a list", value)
    items = tuple(item(entry, f"{where}[{i}]") for i, entry in enumerate(value))
    names = [entry.name for entry in items]
    if len(set(names)) != len(names):
        raise _refuse(where, "a list without duplicate names", names)
    return items


def _tensor(value: object, where: str) -> TensorSpec:
    entry = _object(value, where, ("name", "dtype", "shape"))
    if entry["dtype"] not in DTYPES:
        raise _refuse(f"{where}.dtype", f"one of {DTYPES}", entry["dtype"])
    if not isinstance(entry["shape"], list):
        raise _refuse(f"{where}.shape", "a list", entry["shape"])
    shape = tuple(
        _text(dim, f"{where}.shape", _TENSOR_NAME) if isinstance(dim, str) else _integer(dim, f"{where}.shape")
        for dim in entry["shape"]
    )
    return TensorSpec(_text(entry["name"], f"{where}.name", _TENSOR_NAME), entry["dtype"], shape)


def _fixed_tensor(value: object, where: str) -> TensorSpec:
    spec = _tensor(value, where)
    if not all(isinstance(dim, int) for dim in spec.shape):
        raise _refuse(f"{where}.shape", "integers", spec.shape)
    return spec


def _initializer(value: object, where: str) -> Initializer:
    entry = _object(value, where, ("name", "tensor", "transposed"))
    if not isinstance(entry["transposed"], bool):
        raise _refuse(f"{where}.transposed", "true or false", entry["transposed"])
    name = _text(entry["name"], f"{where}.name", _TENSOR_NAME)
    return Initializer(name, _text(entry["tensor"], f"{where}.tensor", _TENSOR_NAME), entry["transposed"])


def _graph(value: object, where: str) -> GraphSpec:
    entry = _object(value, where, ("file", "inputs", "outputs", "initializers"))
    constants: tuple[Initializer, ...] = _list(entry["initializers"], f"{where}.initializers", _initializer)
    if list(constants) != sorted(constants, key=lambda constant: constant.name):
        raise _refuse(f"{where}.initializers", "sorted by name", len(constants))
    return GraphSpec(
        file=_text(entry["file"], f"{where}.file", _FILE_NAME),
        inputs=_list(entry["inputs"], f"{where}.inputs", _tensor),
        outputs=_list(entry["outputs"], f"{where}.outputs", _tensor),
        initializers=constants,
    )


def _file(value: object, where: str) -> FileSpec:
    entry = _object(value, where, ("size", "sha256"))
    return FileSpec(_integer(entry["size"], f"{where}.size"), _text(entry["sha256"], f"{where}.sha256", _SHA256))


def _manifest(document: dict[str, Any]) -> Manifest:
    _object(document, "the top level", tuple(field.name for field in fields(Manifest)))
    if document["kind"] not in KINDS:
        raise _refuse("kind", f"one of {KINDS}", document["kind"])
    files: Mapping[str, Any] = _object(document["files"], "files")
    graphs: Mapping[str, Any] = _object(document["graphs"], "graphs")
    return Manifest(
        format_version=FORMAT_VERSION,
        name=check_name(document["name"]),
        kind=document["kind"],
        family=_text(document["family"], "family", _NAME),
        config=_object(document["config"], "config"),
        state=_list(document["state"], "state", _fixed_tensor),
        tensors=_list(document["tensors"], "tensors", _fixed_tensor),
        graphs={_text(name, "graphs", _NAME): _graph(graph, f"graphs.{name}") for name, graph in graphs.items()},
        files={_text(name, "files", _FILE_NAME): _file(entry, f"files.{name}") for name, entry in files.items()},
        calibration=_object(document["calibration"], "calibration"),
        metrics=_object(document["metrics"], "metrics"),
        provenance=_object(document["provenance"], "provenance"),
    )
