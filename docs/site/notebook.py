"""Notebook of the Python guide, with the same text, cells and outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "guides" / "python.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
_CELL = re.compile(
    r"^(?:<!-- goes on -->\n)?```python\n(?P<code>.*?)^```\n<!-- reply -->\n```text\n(?P<output>.*?)^```\n",
    re.MULTILINE | re.DOTALL,
)


def notebook(page: str) -> str:
    """Convert a page, in which every code block has a reply, to a notebook (JSON of nbformat 4.5)."""
    cells: list[dict[str, Any]] = []
    end = 0
    for cell in _CELL.finditer(page):
        cells += [_words(page[end : cell.start()], len(cells)), _code(cell["code"], cell["output"], len(cells) + 1)]
        end = cell.end()
    cells.append(_words(page[end:], len(cells)))
    about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _words(text: str, number: int) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": text.strip("\n")}


def _code(code: str, output: str, number: int) -> dict[str, Any]:
    stdout = {"name": "stdout", "output_type": "stream", "text": output}
    cell: dict[str, Any] = {"cell_type": "code", "execution_count": None, "id": f"cell-{number}", "metadata": {}}
    return cell | {"outputs": [stdout], "source": code.rstrip("\n")}
