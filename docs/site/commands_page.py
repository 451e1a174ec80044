"""CLI reference: the `--help` output of every command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from rfa.cli.main import app

WIDTH = 100


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    if isinstance(command, TyperGroup):
        for name, part in command.commands.items():
            yield from _commands(part, f"{path} {name}")


def page() -> str:
    """Return the page as Markdown: a heading and a block for each command, groups before their subcommands."""
    sections = []
    for path, command in _commands(typer.main.get_command(app), "rfa"):
        context = command.make_context(path, [], resilient_parsing=True, max_content_width=WIDTH, terminal_width=WIDTH)
        sections.append(f"## {path}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(sections)
