"""Verify bundles.

- files: `open_bundle` checks every byte and every shape.
- outputs: The runtime of this machine must reproduce the golden outputs.
- model: If torch is installed, the outputs are compared with those of the torch model, which is rebuilt from config and
  weights. The comparison runs in a subprocess. It covers 1,000 recurrent steps and, for language models, prefill and
  attention.
- kernels: `open_bundle` checks the hashes, signature and format of GPU kernels. They are not run.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rfa
from rfa.export.comparison import Comparison, compiled_sessions
from rfa.runtime.bundle.bundle import Bundle, BundleError, StoredKernel, check_golden, open_bundle
from rfa.runtime.passes import PassesRange

if TYPE_CHECKING:
    from rfa.runtime.bundle.signing import PublicKey

# Texts about the signature of GPU kernels. Servers do not run kernels without a trusted signature.
TRUSTED_KERNELS = "signed by a trusted key"
UNTRUSTED_KERNELS = "no trusted key was given; servers load the kernels only if a trusted key signed the bundle"


@dataclass(frozen=True)
class VerifyReport:
    """Results of `verify_bundle`.

    Attributes:
        name: Name of the bundle.
        kind: Kind of the bundle.
        digest: SHA-256 of the manifest.
        files: Number of files, including the manifest.
        golden_values: Number of golden values that were reproduced.
        comparisons: Comparisons of the graphs with torch. Empty if torch is not installed.
        kernels: For a bundle with GPU kernels, a text that says whether a trusted key signed them. Otherwise, None.
    """

    name: str
    kind: str
    digest: str
    files: int
    golden_values: int
    comparisons: tuple[Comparison, ...]
    kernels: str | None = None

    @property
    def passed(self) -> bool:
        return all(comparison.passed for comparison in self.comparisons)

    def to_dict(self) -> dict[str, Any]:
        comparisons = [{**asdict(entry), "passed": entry.passed} for entry in self.comparisons]
        return {**asdict(self), "comparisons": comparisons, "passed": self.passed}


def verify_bundle(path: str | Path, trusted_keys: Sequence[PublicKey] = ()) -> VerifyReport:
    """Run all checks of a bundle that this installation supports.

    Args:
        path: Directory of the bundle.
        trusted_keys: Public keys, one of which must have signed the bundle. See `open_bundle`.

    Returns:
        The report. `passed` is False if an output differs from the torch model by more than the limit.

    Raises:
        BundleError: If the bundle is damaged, its golden outputs are not reproduced, or its model cannot be rebuilt.
    """
    bundle = open_bundle(path, trusted_keys)
    golden_values = check_golden(bundle, compiled_sessions(bundle))
    comparisons: tuple[Comparison, ...] = ()
    if importlib.util.find_spec("torch") is not None:
        comparisons = _in_fresh_process(bundle)
    files = len(bundle.manifest.files) + 1
    kernels = None
    if bundle.kernels:
        kernels = TRUSTED_KERNELS if trusted_keys else UNTRUSTED_KERNELS
    return VerifyReport(bundle.name, bundle.kind, bundle.digest, files, golden_values, comparisons, kernels)


def bundle_info(path: str | Path) -> dict[str, Any]:
    """Check a bundle, and return its kind, configuration, sizes, interfaces, calibration, metrics and provenance."""
    bundle = open_bundle(path)
    manifest = bundle.manifest
    return {
        "name": bundle.name,
        "kind": bundle.kind,
        "family": manifest.family,
        "format_version": manifest.format_version,
        "digest": bundle.digest,
        "bytes": sum(spec.size for spec in manifest.files.values()),
        "files": {name: spec.size for name, spec in manifest.files.items()},
        "parameters": sum(array.size for name, array in bundle.weights().items() if not name.startswith("initial.")),
        "config": manifest.config,
        **({"modes": list(bundle.language.modes)} if bundle.kind == "lm" else {}),
        **({"passes": list(PassesRange.of(bundle))} if bundle.kind in ("lm", "filter") else {}),
        "state": [asdict(spec) for spec in manifest.state],
        "graphs": {name: asdict(graph) for name, graph in manifest.graphs.items()},
        **({"kernels": [_kernel_info(kernel) for kernel in bundle.kernels]} if bundle.kernels else {}),
        "calibration": manifest.calibration,
        "metrics": manifest.metrics,
        "provenance": manifest.provenance,
    }


def _kernel_info(kernel: StoredKernel) -> dict[str, Any]:
    """Return the fields of a kernel that `rfa info` prints."""
    fields = {"name", "file", "architecture", "warps", "registers", "stack_bytes", "shared_bytes", "triton", "cuda"}
    return kernel.entry.model_dump(include=fields)


def _in_fresh_process(bundle: Bundle) -> tuple[Comparison, ...]:
    command = [sys.executable, "-m", "rfa.export.comparison", str(bundle.path.resolve())]
    home = Path(str(rfa.__file__)).parent.parent
    result = subprocess.run(command, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise BundleError(f"{bundle.name}: comparing the bundle with torch failed: {reason}")
    return tuple(Comparison(**comparison) for comparison in json.loads(result.stdout))
