"""A server that runs the kernels of a bundle under the load test, on this machine's loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from rfa.benchmarks.load.run import run_scenario
from rfa.benchmarks.load.scenario import changed, find_scenario
from rfa.benchmarks.load.server import started
from rfa.benchmarks.results_page.page import tables_of
from rfa.library.locate import find_bundle
from rfa.measured import write_result
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.bundle.signing import SecretKey, sign_bundle, write_keys

RESULT = "load-text-64-gpu.json"
STORED = "kernels.json"


def signed_bundle(given: Path | None, place: Path, *, has_kernels: bool) -> tuple[Path, Path]:
    """Return a copy of a bundle with kernels for this GPU, signed by a new key, and the public key file."""
    bundle = place / "books"
    shutil.copytree(given or find_bundle("books"), bundle)
    if has_kernels and not (bundle / STORED).exists():
        import torch

        major, minor = torch.cuda.get_device_capability()
        architecture = f"sm_{10 * major + minor}"
        subprocess.run([sys.executable, "-m", "rfa.export.gpu_kernels", str(bundle), "--gpu", architecture], check=True)
    keys = write_keys(place / "signing")
    sign_bundle(bundle, open_bundle(bundle).digest, SecretKey.parse(keys.key.read_text()))
    return bundle, keys.pub


def served_kernels(url: str) -> Any:
    """Return the kernels of the first model as `/info` reports them."""
    with urllib.request.urlopen(f"{url}/info", timeout=10) as reply:
        return json.loads(reply.read())["models"][0].get("kernels")


def main(
    out: Annotated[Path, typer.Option(file_okay=False)],
    bundle: Annotated[Path | None, typer.Option()] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse")] = False,
) -> None:
    scenario = find_scenario("text-64")
    scenario = changed(scenario, {"seconds": 15.0, "warmup_seconds": 3.0})
    if rehearse:
        scenario = changed(scenario, {"seconds": 1.0, "warmup_seconds": 0.2, "text.streams": 2, "text.new_tokens": 4})
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        found, public = signed_bundle(bundle, place, has_kernels=not rehearse)
        # No compiled kernels are cached and, if requested, no compiler is available.
        os.environ["TRITON_CACHE_DIR"] = str(place / "triton")
        settings = {"trusted_keys_file": str(public), "device": "cpu" if rehearse else "cuda"}
        with started([found], settings) as target:
            kernels = served_kernels(target.url)
            document, _ = run_scenario(scenario, [found], target.url, target.pid)
    write_result(out / RESULT, {**document, "device": settings["device"], "kernels": kernels})
    print("\n".join(tables_of("load-run", document)))
    print(json.dumps(kernels))


if __name__ == "__main__":
    typer.run(main)
