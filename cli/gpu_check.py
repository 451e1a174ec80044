"""`rfa gpu-check`: the first minutes on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rfa.cli.console import JsonFlag, print_table


def gpu_check(
    out: Annotated[Path, typer.Option(help="JSON file to write, to be sent back.")] = Path("gpu-check.json"),
    as_json: JsonFlag = False,
) -> None:
    """On a GPU, in 25 minutes: are kernels and decoding right, then how fast; exit code 1 if anything is wrong."""
    from rfa.bench.gpu_check import GpuCheckError, lines, problems, run_gpu_check

    document = run_gpu_check(out)
    print_table(document, [*lines(document), "", f"All of it is in {out}."], as_json)
    if found := problems(document):
        raise GpuCheckError(found)
