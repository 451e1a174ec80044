"""Check the manifest, arrays and calibration of a bundle by the rules of its family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rfa.runtime.bundle.documents import BundleError, read_document
from rfa.runtime.bundle.families import FAMILIES, FamilyConfig
from rfa.runtime.bundle.families.arrays import AnyArray, check_arrays
from rfa.runtime.bundle.families.filters import FilterConfig
from rfa.runtime.bundle.families.language import LanguageConfig
from rfa.runtime.bundle.manifest import DTYPES, MANIFEST_FILE, Dtype, GraphSpec, Manifest, TensorSpec

WEIGHTS_FILE = "model.safetensors"
# Optional file of constants, computed from the weights at export for runtimes without torch.
CONSTANTS_FILE = "decoder.safetensors"
CALIBRATION_FILE = "calibration.json"
RETIRED_FAMILY = "metric"


def read_family(manifest: Manifest) -> FamilyConfig:
    """Return the configuration of a bundle, after checking that the state and graphs in the manifest match it.

    Raises:
        BundleError: If the manifest does not match the configuration. The message names the field and the reason.
    """
    kind = FAMILIES.get(manifest.family)
    if manifest.family == RETIRED_FAMILY:
        raise BundleError(f"{MANIFEST_FILE}: the family {manifest.family!r} is not supported; use the model 'auto'")
    if kind is None:
        raise BundleError(f"{MANIFEST_FILE}: unknown family {manifest.family!r}, expected one of {sorted(FAMILIES)}")
    if kind.kind != manifest.kind:
        raise BundleError(
            f"{MANIFEST_FILE}: the kind is {manifest.kind!r}, but the family {manifest.family!r} has kind {kind.kind!r}"
        )
    family = read_document(kind, manifest.config, f"{MANIFEST_FILE}: config")
    if manifest.state != family.state():
        raise BundleError(f"{MANIFEST_FILE}: the state does not match the configuration")
    rules = family.graphs()
    if manifest.family == "linear" and manifest.graphs:
        raise BundleError(
            f"{MANIFEST_FILE}: a linear filter must not have graphs; export the bundle again with `rfa export RUN`"
        )
    if set(manifest.graphs) != set(rules):
        raise BundleError(f"{MANIFEST_FILE}: the graphs are {sorted(manifest.graphs)[:8]}, but must be {sorted(rules)}")
    for name, rule in rules.items():
        graph = manifest.graphs[name]
        _check_side(graph, "inputs", graph.inputs, rule.inputs, rule.optional)
        _check_side(graph, "outputs", graph.outputs, rule.outputs, frozenset())
    return family


def tensor_specs(weights: Mapping[str, AnyArray]) -> tuple[TensorSpec, ...]:
    """Return the entries of the manifest for named arrays.

    Raises:
        BundleError: If a dtype is not supported.
    """
    for name, array in weights.items():
        if str(array.dtype) not in DTYPES:
            raise BundleError(f"{WEIGHTS_FILE}: {name} has dtype {array.dtype}, but must have one of {DTYPES}")
    return tuple(
        TensorSpec(name, cast(Dtype, str(array.dtype)), array.shape) for name, array in sorted(weights.items())
    )


def check_weights(weights: Mapping[str, AnyArray], family: FamilyConfig, manifest: Manifest) -> None:
    """Check model.safetensors against the configuration and the manifest.

    Raises:
        BundleError: If an array does not match. The message names the array and what was expected.
    """
    shapes = {name: array.shape for name, array in weights.items()}
    found = tensor_specs(weights)
    if found != manifest.tensors:
        differing = sorted({spec.name for spec in set(found) ^ set(manifest.tensors)})
        raise BundleError(
            f"{WEIGHTS_FILE}: the names, dtypes, shapes or order of the tensors differ from those in the manifest; "
            f"differing tensors: {differing[:5]}"
        )
    try:
        check_arrays(weights, family.weights(shapes), WEIGHTS_FILE)
        derived = family.derived(weights)
    except BundleError:
        raise
    except ValueError as error:
        raise BundleError(f"{WEIGHTS_FILE}: {error}") from None
    check_arrays({name: weights[name] for name in derived}, derived, WEIGHTS_FILE)


def check_constants(constants: Mapping[str, AnyArray], family: FamilyConfig, weights: Mapping[str, AnyArray]) -> None:
    """Check decoder.safetensors against the configuration and the weights.

    Raises:
        BundleError: If an array does not match, or the family does not use this file.
    """
    rules = family.constants(weights)
    if rules is None:
        raise BundleError(f"{CONSTANTS_FILE}: this file is not allowed in a bundle of kind {family.kind!r}")
    check_arrays(constants, rules, CONSTANTS_FILE)


def check_calibration(document: Mapping[str, Any], family: FamilyConfig, manifest: Manifest) -> None:
    """Check calibration.json, and its summary in the manifest.

    Raises:
        BundleError: If a field is invalid, or the modes or the summary differ. The message gives the reason.
    """
    read_document(family.calibration, document, CALIBRATION_FILE)
    modes = document["modes"] if isinstance(family, LanguageConfig) else set(document) - {"summary"}
    if isinstance(family, LanguageConfig | FilterConfig) and set(modes) != set(family.modes):
        raise BundleError(f"{CALIBRATION_FILE}: the modes are {sorted(modes)}, but must be {sorted(family.modes)}")
    if manifest.calibration != document.get("summary", {}):
        raise BundleError(f"{MANIFEST_FILE}: calibration does not match the summary of {CALIBRATION_FILE}")


def _check_side(
    graph: GraphSpec,
    side: str,
    found: tuple[TensorSpec, ...],
    declared: tuple[TensorSpec, ...],
    optional: frozenset[str],
) -> None:
    present = {spec.name for spec in found}
    expected = tuple(spec for spec in declared if spec.name in present or spec.name not in optional)
    if found == expected:
        return
    first = next((one for one, two in zip(found, expected, strict=False) if one != two), None)
    detail = (
        f"{first.name} {first.dtype}{list(first.shape)}"
        if first is not None
        else f"{len(found)} tensors are declared, expected {len(expected)}"
    )
    raise BundleError(f"{MANIFEST_FILE}: the {side} of {graph.file} do not match the configuration: {detail}")
