"""`rfa gpu-check`: the first minutes on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rfa.cli.console import JsonFlag, print_table


def gpu_check(
    seconds: Annotated[float, typer.Option(help="Time limit; parts that may not fit into it are skipped.")] = 1500.0,
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = Path("gpu-check.json"),
    as_json: JsonFlag = False,
) -> None:
    """Check and time everything that runs on a GPU, within 25 minutes; exit code 1 if a check fails."""
    from rfa.benchmarks.gpu.check import GpuCheckError, problems, run_gpu_check
    from rfa.benchmarks.results_page.page import tables_of

    document = run_gpu_check(out, seconds=seconds)
    print_table(document, [*tables_of("gpu-check", document), "", f"All of it is in {out}."], as_json)
    if found := problems(document):
        raise GpuCheckError(found)
