"""`rfa gpu-check`: check and measure everything that runs on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rfa.cli.console import print_table
from rfa.cli.options import JsonFile, JsonFlag


def gpu_check(
    seconds: Annotated[
        float, typer.Option(help="Time limit in seconds. Checks that may exceed it are skipped.")
    ] = 1500.0,
    out: JsonFile = Path("gpu-check.json"),
    as_json: JsonFlag = False,
) -> None:
    """Check everything that runs on a GPU and measure its speed, in up to 25 minutes. The exit code is 1 if a check
    fails."""
    from rfa.benchmarks.gpu.check import GpuCheckError, problems, run_gpu_check
    from rfa.benchmarks.results_page.page import tables_of

    document = run_gpu_check(out, seconds=seconds)
    print_table(document, [*tables_of("gpu-check", document), "", f"Details are in {out}."], as_json)
    if found := problems(document):
        raise GpuCheckError(found)
