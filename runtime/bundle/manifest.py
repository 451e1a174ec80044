"""The manifest of a bundle, which is read strictly and written in canonical form.

The canonical form has sorted keys, an indent of two spaces, ASCII characters and one newline at the end.
`content_sha256` covers all other fields, and manifest.json must be the canonical form of its content, so a changed bit
is always detected. A hash is not a signature: it detects damage, but not forgery.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, get_args

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from rfa.runtime.bundle.documents import STRICT, BundleError, Sha256, canonical_json, json_object, read_json, sha256
from rfa.runtime.bundle.stored_kernels import MAX_KERNELS

FORMAT_VERSION: Final = 1
MANIFEST_FILE = "manifest.json"
# Name of the optional signature. It is the only file that the manifest does not list.
SIGNATURE_FILE = "manifest.json.minisig"
Kind = Literal["lm", "filter", "series"]
Dtype = Literal["float64", "float32", "float16", "int64", "int32", "bool"]
DTYPES: tuple[str, ...] = get_args(Dtype)
MAX_MANIFEST_BYTES = 4 << 20
# Two files per kernel, and about 20 other files.
MAX_FILES = 2 * MAX_KERNELS + 64


class _Named:
    name: str


Entry = TypeVar("Entry", bound=_Named)


def _unique(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    if len({entry.name for entry in entries}) != len(entries):
        raise ValueError("must have unique names")
    return entries


def _sorted(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    if any(one.name > two.name for one, two in pairwise(entries)):
        raise ValueError("must be sorted by name")
    return entries


def _fixed(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    if any(isinstance(dim, str) for tensor in tensors for dim in tensor.shape):
        raise ValueError("every dimension must be an integer")
    return tensors


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
TensorName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]
Size = Annotated[int, Field(ge=0, le=1 << 53)]
Dimension = Annotated[
    Annotated[Size, Tag("size")] | Annotated[TensorName, Tag("name")],
    Discriminator(lambda found: "name" if isinstance(found, str) else "size"),
]


class _Part:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True)
class TensorSpec(_Part):
    """Name, dtype and shape of an array. A string in `shape` is a variable dimension."""

    name: TensorName
    dtype: Dtype
    shape: Annotated[tuple[Dimension, ...], Field(max_length=16)]


@dataclass(frozen=True)
class FileSpec(_Part):
    """Name, size and hash of a file."""

    size: Size
    sha256: Sha256


@dataclass(frozen=True)
class Initializer(_Part):
    """A constant of a graph whose value is a tensor of model.safetensors."""

    name: TensorName
    tensor: TensorName
    transposed: bool = False


Tensors = Annotated[tuple[TensorSpec, ...], AfterValidator(_unique)]
FixedTensors = Annotated[Tensors, AfterValidator(_fixed)]


@dataclass(frozen=True)
class GraphSpec(_Part):
    """The file of an ONNX graph, its interface, and the constants that are provided when it is loaded."""

    file: FileName
    inputs: Tensors
    outputs: Tensors
    initializers: Annotated[tuple[Initializer, ...], AfterValidator(_unique), AfterValidator(_sorted)]


@dataclass(frozen=True)
class Manifest(_Part):
    """Content of manifest.json.

    Args:
        family, config: Name of the model class (see `rfa.model.checkpoint.FAMILIES`), and its configuration.
        state: Tensors of the recurrent state. The shapes exclude the batch.
        tensors: Tensors of model.safetensors.
        files: Size and hash of every other file of the bundle.
        calibration: Summary of calibration.json.
        metrics, provenance: Free-form JSON.
    """

    format_version: int
    name: Name
    kind: Kind
    family: Name
    config: dict[str, Any]
    state: FixedTensors
    tensors: FixedTensors
    graphs: dict[Name, GraphSpec]
    files: Annotated[dict[FileName, FileSpec], Field(max_length=MAX_FILES)]
    calibration: dict[str, Any]
    metrics: dict[str, Any]
    provenance: dict[str, Any]


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of manifest.json."""
    content = asdict(manifest)
    return canonical_json({**content, "content_sha256": sha256(canonical_json(content))})


# Created at import, because the sandboxed check of a bundle must not open other files later.
_READER = TypeAdapter(Manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Parse manifest.json, and check its format, hash, version and fields.

    Raises:
        BundleError: If the manifest is invalid. The message names the field and the reason.
    """
    document = json_object(data, MANIFEST_FILE)
    version = document.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise BundleError(
            f"{MANIFEST_FILE}: format_version is {version!r}, but this version of rfa-server reads {FORMAT_VERSION}"
        )
    if canonical_json(document) != data:
        raise BundleError(f"{MANIFEST_FILE}: the file is not in canonical form; it was damaged or edited")
    stated = document.pop("content_sha256", None)
    content = canonical_json(document)
    if stated != sha256(content):
        raise BundleError(f"{MANIFEST_FILE}: content_sha256 does not match the content; the file was damaged or edited")
    return read_json(_READER, content, MANIFEST_FILE)
