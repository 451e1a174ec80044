"""Tries bundles: `python -m rfa.service.vetting.child REQUEST`, started by `vetting.vet` and by nobody else.

Everything is imported, and the kernels are compiled, before the limits are set; the first byte of a bundle is read
after that. Answers are lines of JSON on standard output: one before a kernel is compiled, if one is, one that it is
ready, and one for each bundle.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from rfa.runtime.bundle.bundle import CONSTANTS_FILE, Bundle, BundleError, check_golden, open_bundle
from rfa.runtime.bundle.signing import PublicKey, parse_public_keys
from rfa.runtime.compiling import telling_of_compilation
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.text.incremental import Vocabulary
from rfa.service.child_environment import confine
from rfa.service.vetting.wide_trial import try_wide

MAX_REASON = 300
OPEN_FILES = 32


def main() -> None:
    """Answer for each bundle of the request, up to the first that is refused."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    answers = _private_output()
    # Filters are quicker to try without: only a name in the folder is looked at.
    is_compiled = request["text_runtime"] != "onnx" and any(map(_has_constants, request["bundles"]))
    with telling_of_compilation(lambda: print(json.dumps({"compiling": True}), file=answers, flush=True)):
        compiled = _compiled() if is_compiled else None
    keys = parse_public_keys("\n".join(request["trusted_keys"])) if request["trusted_keys"] else ()
    os.chdir(request["directory"])
    # Of the processor for all bundles together; each alone is held to the clock.
    seconds = request["seconds"] * len(request["bundles"])
    confine(seconds=seconds, memory_bytes=request["memory_bytes"], open_files=OPEN_FILES)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for path in request["bundles"]:
        answer = _tried(Path(path), keys, compiled, request["memory_bytes"])
        print(json.dumps(answer), file=answers, flush=True)
        if "refused" in answer:
            return


def _has_constants(path: str) -> bool:
    return (Path(path) / CONSTANTS_FILE).exists()


def _tried(path: Path, keys: tuple[PublicKey, ...], compiled: Any, memory_bytes: int) -> dict[str, Any]:
    try:
        bundle = open_bundle(path, keys)
        count = _run(bundle, compiled)
    except MemoryError:
        return {"refused": f"needs more than {memory_bytes >> 20} MiB"}
    except Exception as error:
        reason = str(error) if isinstance(error, BundleError) else f"{type(error).__name__}: {error}"
        return {"refused": reason[:MAX_REASON]}
    return {"name": bundle.name, "kind": bundle.kind, "digest": bundle.digest, "golden_values": count}


def _run(bundle: Bundle, compiled: Any) -> int:
    """Golden outputs on each runtime; how many values were compared."""
    if not bundle.manifest.graphs:
        return 0  # no graphs; what is compiled from its weights, which are numbers of checked shapes, is tried at load
    sessions = {name: bundle.session(name) for name in bundle.manifest.graphs}
    count = check_golden(bundle, sessions)
    try_wide(bundle, sessions)
    if bundle.kind == "filter":
        FilterRuntime(bundle)
        return count
    Vocabulary(bundle.read("tokenizer.json").decode())
    if compiled is not None and compiled.refusal(bundle) is None:
        count += compiled.reproduce_golden(bundle)
    return count


def _compiled() -> Any:
    """The compiled runtime, its kernels ready; None where there is no numba or no place for its cache."""
    try:
        from rfa.runtime.text import compiled_language as compiled_language_runtime
    except (ImportError, RuntimeError):
        return None
    compiled_language_runtime.compile_kernels()
    return compiled_language_runtime


def _private_output() -> Any:
    """Standard output for the answers alone: what a library prints goes nowhere."""
    answers = os.fdopen(os.dup(1), "w")
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    return answers


if __name__ == "__main__":
    main()
