"""Open a bundle, a directory with the files of a trained model, and create its sessions.

Neither torch nor pickle is used. Bytes are checked before they are parsed or run. The format is described in
docs/reference/bundle-format.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import safetensors.numpy

from rfa.runtime.bundle.bundle_files import read_files
from rfa.runtime.bundle.documents import BundleError, json_object
from rfa.runtime.bundle.families.check import (
    CALIBRATION_FILE,
    CONSTANTS_FILE,
    WEIGHTS_FILE,
    check_calibration,
    check_constants,
    check_weights,
    read_family,
    tensor_specs,
)
from rfa.runtime.bundle.families.filters import FilterConfig
from rfa.runtime.bundle.families.language import LanguageConfig
from rfa.runtime.bundle.golden import GOLDEN_FILE, GoldenMismatch, check_golden_document, run_golden
from rfa.runtime.bundle.graph_check import check_graph, read_graph
from rfa.runtime.bundle.held_out import check_confidences, rows_of
from rfa.runtime.bundle.manifest import MANIFEST_FILE, Initializer, Kind, Manifest, TensorSpec
from rfa.runtime.bundle.onnx_runtime import ort
from rfa.runtime.bundle.stored_kernels import StoredKernel, is_kernel_file, read_kernels
from rfa.runtime.bundle.tokenizer_document import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, check_tokenizer

if TYPE_CHECKING:
    from rfa.runtime.bundle.signing import PublicKey

__all__ = [
    "Bundle",
    "BundleError",
    "Graph",
    "Initializer",
    "LanguageConfig",
    "StoredKernel",
    "TensorSpec",
    "check_golden",
    "open_bundle",
    "open_session",
]

Family = TypeVar("Family", LanguageConfig, FilterConfig)
# Sessions do not read files, because their constants are supplied from memory.
NO_FOLDER = os.devnull


@dataclass(frozen=True)
class Graph:
    """An ONNX graph without weights, and the constants whose values `open_session` provides.
    `rfa.export.onnx_graphs.export_graph` creates graphs of this kind."""

    model: bytes
    initializers: tuple[Initializer, ...] = ()


class Bundle:
    """An opened bundle, as returned by `open_bundle`. Its content has been verified and is stored in memory."""

    def __init__(self, path: Path, manifest: Manifest, digest: str, contents: dict[str, bytes]) -> None:
        self.path = path
        self.manifest = manifest
        self.digest = digest
        self._contents = contents
        self._family = family = read_family(manifest)
        self._weights = _load_arrays(contents.pop(WEIGHTS_FILE), WEIGHTS_FILE)
        check_weights(self._weights, family, manifest)
        self._constants = None
        if CONSTANTS_FILE in contents:
            self._constants = _load_arrays(contents[CONSTANTS_FILE], CONSTANTS_FILE)
            check_constants(self._constants, family, self._weights)
        self._calibration = json_object(contents[CALIBRATION_FILE], CALIBRATION_FILE)
        check_calibration(self._calibration, family, manifest)
        if isinstance(family, LanguageConfig):
            check_tokenizer(contents[TOKENIZER_FILE], contents[TOKENIZER_CONFIG_FILE], family.vocab_size)
        tensors = {spec.name: spec for spec in manifest.tensors}
        self._golden = json_object(contents[GOLDEN_FILE], GOLDEN_FILE)
        vocab_size = family.vocab_size if isinstance(family, LanguageConfig) else None
        check_golden_document(self._golden, family.golden(manifest.graphs), tensors, vocab_size)
        self._checked: set[str] = set()  # names of graphs
        self._kernels = read_kernels({name: contents[name] for name in filter(is_kernel_file, contents)})
        self._sessions: WeakValueDictionary[str, ort.InferenceSession] = WeakValueDictionary()

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def kind(self) -> Kind:
        return self.manifest.kind

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the model, an instance of the class that `manifest.family` names."""
        return self.manifest.config

    @property
    def language(self) -> LanguageConfig:
        """Configuration of a language model, such as its modes and the sizes of its state.

        Raises:
            BundleError: If the bundle is not a language model.
        """
        return self._configuration(LanguageConfig, "language model")

    @property
    def filter(self) -> FilterConfig:
        """Configuration of a filter.

        Raises:
            BundleError: If the bundle is not a filter.
        """
        return self._configuration(FilterConfig, "filter")  # type: ignore[type-abstract]

    def _configuration(self, kind: type[Family], name: str) -> Family:
        if not isinstance(self._family, kind):
            raise BundleError(f"bundle {self.name!r} has kind {self.kind!r}, but a {name} is required")
        return self._family

    @property
    def calibration(self) -> dict[str, Any]:
        """Content of calibration.json."""
        return self._calibration

    @property
    def ece_rows(self) -> int:
        """Number of held-out tokens with which the stated calibration error is verified. It is 0 if the bundle contains
        no held-out tokens."""
        return rows_of(self._calibration)

    @property
    def golden(self) -> dict[str, Any]:
        """Content of golden.json. See `check_golden`."""
        return self._golden

    def weights(self) -> dict[str, np.ndarray]:
        """Return a mapping from names to tensors of model.safetensors. They are read-only and shared by all sessions of
        this bundle."""
        return dict(self._weights)

    def constants(self) -> dict[str, np.ndarray] | None:
        """Return a mapping from names to arrays of decoder.safetensors. Return None if the bundle does not contain that
        file. The arrays are read-only."""
        return None if self._constants is None else dict(self._constants)

    @property
    def kernels(self) -> tuple[StoredKernel, ...]:
        """Compiled GPU kernels of the bundle. The tuple is empty for most bundles."""
        return self._kernels

    def read(self, name: str) -> bytes:
        """Return the verified bytes of a file other than model.safetensors, such as tokenizer.json.

        Raises:
            BundleError: If the bundle does not contain this file.
        """
        if name not in self._contents:
            raise BundleError(f"{name}: this file is not in bundle {self.name!r}")
        return self._contents[name]

    def session(self, graph_name: str) -> ort.InferenceSession:
        """Return the session of a checked graph, with constants from the weights.

        Callers share the session while it is in use, so requests use the session that reproduced the golden outputs.

        Args:
            graph_name: Name of the graph in the manifest.

        Raises:
            BundleError: If the bundle does not contain this graph, or ONNX Runtime cannot load it.
        """
        if graph_name not in self.manifest.graphs:
            raise BundleError(
                f"{MANIFEST_FILE}: there is no graph {graph_name!r}; the graphs are {sorted(self.manifest.graphs)}"
            )
        found = self._sessions.get(graph_name)
        if found is None:
            spec = self.manifest.graphs[graph_name]
            found = _session(self._graph(graph_name), spec.initializers, self._weights, spec.file)
            self._sessions[graph_name] = found
        return found

    def check_graphs(self) -> None:
        """Check every graph, including graphs without a session.

        Raises:
            BundleError: If a graph is rejected. The message names the file and the reason.
        """
        for name in self.manifest.graphs:
            self._graph(name)

    def _graph(self, name: str) -> bytes:
        spec = self.manifest.graphs[name]
        if name not in self._checked:
            check_graph(self._contents[spec.file], spec, {tensor.name: tensor for tensor in self.manifest.tensors})
            self._checked.add(name)
        return self._contents[spec.file]


def open_bundle(path: str | Path, trusted_keys: Sequence[PublicKey] = (), *, with_graphs: bool = True) -> Bundle:
    """Open a bundle and check it completely.

    The checks run in this order: the signature, if keys are given; the set of files, which must be regular files; the
    hash and the format of the manifest; the size and SHA-256 of each file; and the rules of the model family for the
    configuration, arrays, calibration, tokenizer, golden cases and graphs.

    Args:
        path: Directory of the bundle.
        trusted_keys: Public keys, one of which must have signed the manifest. If empty, signatures are ignored.
        with_graphs: Whether to check the graphs immediately. Otherwise, each graph is checked before its first session.

    Raises:
        BundleError: If a check fails. The message names the file and the reason.
    """
    directory = Path(path)
    bundle = Bundle(directory, *read_files(directory, trusted_keys))
    if with_graphs:
        bundle.check_graphs()
    return bundle


def open_session(graph: Graph, weights: Mapping[str, np.ndarray]) -> ort.InferenceSession:
    """Check a graph and return a CPU session for it, with constants from `weights`.

    Raises:
        BundleError: If the graph is invalid, `weights` does not contain a constant, or ONNX Runtime cannot load the
            graph.
    """
    tensors = {spec.name: spec for spec in tensor_specs(weights)}
    read_graph(graph.model, "graph", graph.initializers, tensors)
    return _session(graph.model, graph.initializers, weights, "graph")


def _session(
    model: bytes, initializers: Sequence[Initializer], weights: Mapping[str, np.ndarray], file: str
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    # More threads would compete with other requests for cores.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Memory patterns are stored per input shape, and prompts can have any length.
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.add_session_config_entry("session.load_model_format", "ONNX")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", NO_FOLDER)
    names, values = [], []
    for entry in initializers:
        array = weights[entry.tensor]
        names.append(entry.name)
        values.append(ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array.T) if entry.transposed else array))
    if names:
        options.add_external_initializers(names, values)
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise
    except Exception as error:  # the runtime's exceptions have no common base class
        raise BundleError(f"{file}: ONNX Runtime cannot load the graph: {str(error)[:300]}") from None


def check_golden(bundle: Bundle, sessions: Mapping[str, ort.InferenceSession] | None = None) -> int:
    """Run the golden cases of a bundle. For a language model, also process its held-out text.

    Args:
        bundle: Opened bundle.
        sessions: Sessions by graph name. By default, the sessions of the bundle.

    Returns:
        The number of compared values. It is 0 for a bundle without graphs if `sessions` is not given.

    Raises:
        BundleError: If an output differs from golden.json by more than the tolerance, or a confidence differs from
            calibration.json.
    """
    if not bundle.manifest.graphs and not sessions:
        return 0  # compiled code is checked where it is compiled
    chosen = sessions or {name: bundle.session(name) for name in bundle.manifest.graphs}
    try:
        count = run_golden(bundle.golden, chosen, bundle.weights())
    except GoldenMismatch as error:
        raise BundleError(f"{GOLDEN_FILE}: {error}") from None
    if bundle.kind == "lm":
        count += check_confidences(bundle.calibration, chosen, bundle.weights())
    return count


def _load_arrays(data: bytes, file: str) -> dict[str, np.ndarray]:
    """Load the arrays of a file. They are read-only."""
    try:
        arrays = dict(safetensors.numpy.load(data))
    except MemoryError:
        raise
    except Exception as error:  # safetensors raises its own and key errors for unknown dtypes
        raise BundleError(f"{file}: the file cannot be read: {str(error)[:200]}") from None
    for array in arrays.values():
        array.flags.writeable = False
    return arrays
