"""Parse the blocks of the README, and compare shown replies with real ones.

Every `bash` and `python` block runs, in order, unless a comment on the line before it gives a reason:

    <!-- not run: it does not end -->

A `json` or `text` block after `<!-- reply -->` is the output of the previous block. Numbers are compared to the shown
digits, timings only by their presence. `RFA_UPDATE_DOCS=1` rewrites the replies.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
RUNNABLE = ("bash", "python")
VARYING = {"timings"}
DIGITS = 4
WIDTH = 100


@dataclass(frozen=True)
class Block:
    """A fenced block. `start` and `end` are the positions of its body in the file."""

    language: str
    mark: str
    body: str
    line: int
    start: int
    end: int

    @property
    def is_run(self) -> bool:
        return self.language in RUNNABLE and not self.mark.startswith("not run: ")

    @property
    def is_reply(self) -> bool:
        return self.mark == "reply"


def parse_blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a Markdown text in order."""
    return [
        Block(
            match["language"],
            match["mark"] or "",
            match["body"],
            text.count("\n", 0, match.start("body")),
            match.start("body"),
            match.end("body"),
        )
        for match in _BLOCK.finditer(text)
    ]


def rounded(value: Any) -> Any:
    """Round the numbers of a JSON value to the shown digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def pretty(value: Any, indent: int = 0) -> str:
    """Format JSON with as many items on a line as fit."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {pretty(item, indent + 1)}" for key, item in value.items()]
    else:
        items = [pretty(item, indent + 1) for item in value]
    lines = [items[0]]
    for item in items[1:]:
        together = f"{lines[-1].splitlines()[-1]}, {item.splitlines()[0]}"
        if "\n" not in item and indent + len(together) < WIDTH:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return opening + f",\n{' ' * (indent + 1)}".join(lines) + closing


def shown_as(language: str, output: str) -> str:
    """Return an output as the README shows it."""
    return pretty(rounded(json.loads(output))) + "\n" if language == "json" else output.rstrip("\n") + "\n"


def differences(shown: Any, real: Any, path: str = "reply") -> list[str]:
    """Return the places where a shown JSON value differs from the real one."""
    if isinstance(shown, bool) or isinstance(real, bool) or shown is None or real is None:
        return [] if shown is real else [f"{path}: shows {shown}, is {real}"]
    if isinstance(shown, int | float) and isinstance(real, int | float):
        is_close = math.isclose(shown, real, rel_tol=0.6 * 10.0 ** (1 - DIGITS), abs_tol=1e-6)
        return [] if is_close else [f"{path}: shows {shown}, is {real}"]
    if type(shown) is not type(real):
        return [f"{path}: shows {shown}, is {real}"]
    if isinstance(shown, dict):
        if list(shown) != list(real):
            return [f"{path}: shows the keys {list(shown)}, has {list(real)}"]
        return [
            text for key in shown if key not in VARYING for text in differences(shown[key], real[key], f"{path}.{key}")
        ]
    if isinstance(shown, list):
        if len(shown) != len(real):
            return [f"{path}: shows {len(shown)} items, has {len(real)}"]
        pairs = zip(shown, real, strict=True)
        return [text for i, (a, b) in enumerate(pairs) for text in differences(a, b, f"{path}[{i}]")]
    return [] if shown == real else [f"{path}: shows {shown!r}, is {real!r}"]
