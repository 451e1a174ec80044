"""What every command shares: how results are printed and how failures end.

A failure is one line on stderr and a non-zero exit code; `RFA_DEBUG=1` shows the traceback instead.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line.")]

# Our own errors, and these of Python, carry messages that are written for the user.
EXPLAINED = (ValueError, FloatingPointError, MemoryError)
# Characters of a value that a line shows; --json has all of it.
SHOWN = 90
# What measures is not installed.
CHECKOUT_ONLY = "rfa.benchmarks"
# Which extra brings what the serving set does not have.
EXTRAS = (
    {"matplotlib": "plot", "triton": "gpu"}
    | dict.fromkeys(("torch", "numba", "onnx", "onnxscript", "scipy"), "train")
    | dict.fromkeys(("aiohttp", "picows", "psutil", "statsmodels"), "bench")
)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def explain(error: Exception) -> str:
    """One line that tells what went wrong and, where it can, what to do."""
    if hasattr(error, "format_message"):  # a usage error of the command line parser
        return f"{_one_line(error.format_message())} (see --help)"
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if name == CHECKOUT_ONLY:
        return f"this command needs a checkout of rfa-server: what is installed here has no {name}"
    missing = name.split(".")[0]
    if missing in EXTRAS:
        return (
            f"this command needs {missing}: pip install 'rfa-server[{EXTRAS[missing]}]'; `make test` sets up everything"
        )
    if hasattr(error, "errors") and callable(error.errors):  # pydantic's ValidationError
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        # Of settings: a variable has the name that its reader knows.
        name = f"{place} (RFA_{place.upper()})" if getattr(error, "title", None) == "Settings" else place
        return f"{name}: {_one_line(first['msg'])}"
    if isinstance(error, OSError) and error.strerror:
        return _one_line(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    text = _one_line(str(error))
    explained = isinstance(error, EXPLAINED) or type(error).__module__.split(".")[0] == "rfa"
    if (explained or isinstance(error, OSError)) and text:
        return text
    return f"unexpected {type(error).__name__}: {text} (RFA_DEBUG=1 shows where)"


class CommandGroup(TyperGroup):
    """The root group: it turns every exception of a command into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; usage errors exit with 2, other failures with 1, signals with 128 and their number."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, EOFError):
            raise
        except KeyboardInterrupt as stop:
            # What saved its work before it left says so, and by which signal it was asked.
            typer.echo(f"rfa: {str(stop) or 'stopped by Ctrl-C'}", err=True)
            raise typer.Exit(getattr(stop, "exit_code", 128 + signal.SIGINT)) from None
        except BrokenPipeError:
            # The reader of a pipe has seen enough (`rfa generate … | head`): nobody is left to tell.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - Python flushes it at exit
            raise typer.Exit(1) from None
        except Exception as error:
            if os.environ.get("RFA_DEBUG"):
                raise
            typer.echo(f"rfa: {explain(error)}", err=True)
            raise typer.Exit(getattr(error, "exit_code", 1)) from None


def print_json(document: Any) -> None:
    """The document on one line of stdout; it must be finite."""
    typer.echo(json.dumps(document, allow_nan=False))


def print_table(document: Any, lines: Iterable[str], as_json: bool) -> None:
    """A measurement as JSON, or as the lines of its table."""
    if as_json:
        print_json(document)
    else:
        typer.echo("\n".join(lines))


def _rows(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            rows += _rows(value, f"{name}.")
        elif isinstance(value, float):
            rows.append((name, f"{value:.6g}"))
        elif value is not None:
            text = str(value)
            rows.append((name, text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"))
    return rows


def print_result(document: Mapping[str, Any], as_json: bool) -> None:
    """A result as JSON, or as aligned lines of names and values."""
    if as_json:
        print_json(document)
        return
    rows = _rows(document)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")
