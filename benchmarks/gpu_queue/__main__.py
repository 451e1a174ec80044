"""`python -m rfa.benchmarks.gpu_queue`: one command for a machine whose GPU is available for minutes.

Parts run in the order of `parts.py`, each in its own process with a time limit. Results and logs are written to --out
as each part ends. The same command with that folder continues: finished parts are not repeated, and training resumes.
Files have at most 16 MiB. On a machine without a package index, --wheels names a folder of missing packages.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from rfa.benchmarks.gpu_queue.parts import QUEUE, Wishes, parts, summarise
from rfa.benchmarks.gpu_queue.queue import DONE, UNFINISHED, run_queue
from rfa.measured import HOME

MOST_SECONDS = 720.0


def _environment(wheels: Path | None, site: str) -> dict[str, str]:
    """Return the environment of the parts: this checkout, then the packages of the wheels."""
    paths = [str(HOME)]
    if wheels is not None:
        found = sorted(str(path) for path in wheels.glob("*.whl"))
        install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile")
        subprocess.run([*install, "--target", site, *found], check=True)
        paths.append(site)
    paths += [path for path in (os.environ.get("PYTHONPATH"),) if path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "TYPER_STANDARD_TRACEBACK": "1",
    }


def main(
    *,
    out: Annotated[Path, typer.Option(help="Folder of results. Continues an earlier run in it.", file_okay=False)],
    seconds: Annotated[float, typer.Option(help="Time limit of the run.")] = MOST_SECONDS,
    part: Annotated[list[str] | None, typer.Option(help=f"{', '.join(QUEUE)}; repeat for more. Default: all.")] = None,
    wheels: Annotated[Path | None, typer.Option(help="Folder of wheels to install for the parts.")] = None,
    commit: Annotated[str | None, typer.Option(help="Commit of the code, outside a checkout.")] = None,
    series_config: Annotated[Path | None, typer.Option(help="Training config of the series network.")] = None,
    series_minutes: Annotated[float | None, typer.Option(help="Training time over all sessions.")] = None,
    series_from: Annotated[
        Path | None, typer.Option(help="Run with the initial weights. Default: random weights.")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="Language model to serve, with kernels for this GPU.")] = None,
    books: Annotated[Path | None, typer.Option(help="Folder of texts to train the language model on.")] = None,
    check_seconds: Annotated[float, typer.Option(help="Duration of `rfa gpu-check`.")] = 200.0,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Run on a CPU, at tiny sizes.")] = False,
) -> None:
    """Run the parts. The exit code is 1 if a part failed, and 75 if one can be resumed by the same command."""
    wishes = Wishes(
        out=out.resolve(), is_rehearsal=rehearse, series_config=series_config, series_minutes=series_minutes,
        series_from=series_from,
        bundle=bundle, books=books, check_seconds=check_seconds,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as site:
        record = run_queue(
            parts(wishes, tuple(part or ())), wishes.out, seconds=math.inf if rehearse else seconds, commit=commit,
            environment=_environment(wheels, site),
        )  # fmt: skip
    print(summarise(record))
    statuses = {found["status"] for found in record.values()}
    sys.exit(1 if "failed" in statuses else UNFINISHED if statuses - {DONE} else 0)


if __name__ == "__main__":
    typer.run(main)
