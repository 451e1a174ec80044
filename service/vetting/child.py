"""Tries bundles: `python -m rfa.service.vetting.child REQUEST`, started by `vetting.vet` and by nobody else.

Everything is imported before the limits are set; the first byte of a bundle is read after that. Answers are lines of
JSON on standard output: one that it is ready, and one for each bundle.

Graphs are run here. Compiled code, whose weights are numbers of checked shapes, is held to the golden outputs by the
processes that serve.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from rfa.runtime.bundle.bundle import Bundle, BundleError, check_golden, open_bundle
from rfa.runtime.bundle.signing import PublicKey, parse_public_keys
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
    keys = parse_public_keys("\n".join(request["trusted_keys"])) if request["trusted_keys"] else ()
    os.chdir(request["directory"])
    # Of the processor for all bundles together; each alone is held to the clock.
    seconds = request["seconds"] * len(request["bundles"])
    confine(seconds=seconds, memory_bytes=request["memory_bytes"], open_files=OPEN_FILES)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for path in request["bundles"]:
        answer = _tried(Path(path), keys, request["memory_bytes"])
        print(json.dumps(answer), file=answers, flush=True)
        if "refused" in answer:
            return


def _tried(path: Path, keys: tuple[PublicKey, ...], memory_bytes: int) -> dict[str, Any]:
    try:
        bundle = open_bundle(path, keys)
        count = _run(bundle)
    except MemoryError:
        return {"refused": f"needs more than {memory_bytes >> 20} MiB"}
    except Exception as error:
        reason = str(error) if isinstance(error, BundleError) else f"{type(error).__name__}: {error}"
        return {"refused": reason[:MAX_REASON]}
    return {"name": bundle.name, "kind": bundle.kind, "digest": bundle.digest, "golden_values": count}


def _run(bundle: Bundle) -> int:
    """Run the graphs on golden and large inputs; returns how many values were compared."""
    if not bundle.manifest.graphs:
        return 0
    sessions = {name: bundle.session(name) for name in bundle.manifest.graphs}
    count = check_golden(bundle, sessions)
    try_wide(bundle, sessions)
    if bundle.kind == "filter":
        FilterRuntime(bundle)
    else:
        Vocabulary(bundle.read("tokenizer.json").decode())
    return count


def _private_output() -> Any:
    """Standard output for the answers alone: what a library prints goes nowhere."""
    answers = os.fdopen(os.dup(1), "w")
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    return answers


if __name__ == "__main__":
    main()
