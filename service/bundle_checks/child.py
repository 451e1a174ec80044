"""Subprocess that checks bundles: `python -m rfa.service.bundle_checks.child REQUEST`.

It imports all modules, then limits its resources, and then reads the bundles. It prints JSON lines: one when it is
ready, and one for each bundle. It runs only the graphs of a bundle. The server processes check that compiled code
reproduces the golden outputs.
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
from rfa.service.bundle_checks.large_inputs import check_large_inputs
from rfa.service.child_environment import limit_resources

MAX_REASON = 300
OPEN_FILES = 32


def main() -> None:
    """Check the bundles in the request, up to the first one that is rejected."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    answers = _private_output()
    keys = parse_public_keys("\n".join(request["trusted_keys"])) if request["trusted_keys"] else ()
    os.chdir(request["directory"])
    # This limits the processor time of all bundles together. The parent limits the elapsed time of each bundle.
    seconds = request["seconds"] * len(request["bundles"])
    limit_resources(seconds=seconds, memory_bytes=request["memory_bytes"], open_files=OPEN_FILES)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for path in request["bundles"]:
        answer = _check(Path(path), keys, request["memory_bytes"])
        print(json.dumps(answer), file=answers, flush=True)
        if "refused" in answer:
            return


def _check(path: Path, keys: tuple[PublicKey, ...], memory_bytes: int) -> dict[str, Any]:
    try:
        bundle = open_bundle(path, keys)
        count = _reproduce_golden(bundle)
    except MemoryError:
        return {"refused": f"the bundle needs more than {memory_bytes >> 20} MiB of memory"}
    except Exception as error:
        reason = str(error) if isinstance(error, BundleError) else f"{type(error).__name__}: {error}"
        return {"refused": reason[:MAX_REASON]}
    return {"name": bundle.name, "kind": bundle.kind, "digest": bundle.digest, "golden_values": count}


def _reproduce_golden(bundle: Bundle) -> int:
    """Run the graphs on the golden inputs and on large inputs. Return the number of compared values."""
    if not bundle.manifest.graphs:
        return 0
    sessions = {name: bundle.session(name) for name in bundle.manifest.graphs}
    count = check_golden(bundle, sessions)
    check_large_inputs(bundle, sessions)
    if bundle.kind == "filter":
        FilterRuntime(bundle)
    else:
        Vocabulary(bundle.read("tokenizer.json").decode())
    return count


def _private_output() -> Any:
    """Return standard output as a file for the results of the checks. Output of libraries is discarded."""
    answers = os.fdopen(os.dup(1), "w")
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    return answers


if __name__ == "__main__":
    main()
