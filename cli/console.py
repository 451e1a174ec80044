"""Print the results and errors of commands.

An error is printed on stderr as one line, and the exit code is not 0. `RFA_DEBUG=1` shows the traceback instead.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import typer
from typer.core import TyperGroup

# Built-in exceptions that this package raises with messages for users.
USER_ERRORS = (ValueError, FloatingPointError, MemoryError)
# Longer values are cut off; --json prints all of them.
SHOWN_CHARACTERS = 90
# The wheel does not contain the benchmarks.
CHECKOUT_ONLY = "rfa.benchmarks"
# The extra that installs an optional package.
EXTRAS = (
    {"matplotlib": "plot", "redis": "redis", "triton": "gpu"}
    | dict.fromkeys(("torch", "numba", "onnx", "onnxscript", "scipy"), "train")
    | dict.fromkeys(("aiohttp", "picows", "psutil", "statsmodels"), "bench")
    | dict.fromkeys(("confluent_kafka", "cramjam", "google", "opentelemetry"), "watch")
)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def explain(error: Exception) -> str:
    """Return one line that describes an error and, if known, what to do about it."""
    if hasattr(error, "format_message"):  # a usage error of the command line parser
        return f"{_one_line(error.format_message())} (see --help)"
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if name == CHECKOUT_ONLY:
        return f"this command needs a checkout of rfa-server, because the installed package has no {name}"
    missing = name.split(".")[0]
    if missing in EXTRAS:
        return (
            f"this command needs {missing}; install it with pip install 'rfa-server[{EXTRAS[missing]}]', or set up "
            "everything with `make test`"
        )
    if hasattr(error, "errors") and callable(error.errors):  # pydantic's ValidationError
        first = error.errors()[0]
        is_of_settings = getattr(error, "title", None) == "Settings"
        # The location of a setting begins with its group.
        location = first["loc"][1:] if is_of_settings and len(first["loc"]) > 1 else first["loc"]
        field = ".".join(map(str, location))
        name = f"{field} (RFA_{field.upper()})" if is_of_settings else field
        return f"{name}: {_one_line(first['msg']).removeprefix('Value error, ')}"
    if isinstance(error, OSError) and error.strerror:
        return _one_line(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    text = _one_line(str(error))
    is_for_user = isinstance(error, USER_ERRORS) or type(error).__module__.split(".")[0] == "rfa"
    if (is_for_user or isinstance(error, OSError)) and text:
        return text
    return f"unexpected {type(error).__name__}: {text} (set RFA_DEBUG=1 to see the traceback)"


class CommandGroup(TyperGroup):
    """Group of all commands. It converts an exception to an error message on one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. The exit code is 2 for usage errors, 1 for other errors, and 128 plus the signal number
        after a signal."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, EOFError):
            raise
        except KeyboardInterrupt as stop:
            # If a command has saved its work, the exception has a message and the exit code of its signal.
            typer.echo(f"rfa: {str(stop) or 'stopped by Ctrl-C'}", err=True)
            raise typer.Exit(getattr(stop, "exit_code", 128 + signal.SIGINT)) from None
        except BrokenPipeError:
            # The reader of a pipe has closed it (`rfa generate … | head`).
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - Python flushes it at exit
            raise typer.Exit(1) from None
        except Exception as error:
            if os.environ.get("RFA_DEBUG"):
                raise
            if type(error).__name__ == "NoArgsIsHelpError":  # of click 8.2 and later; its message is the help
                typer.echo(str(error), err=True)
                raise typer.Exit(2) from None
            typer.echo(f"rfa: {explain(error)}", err=True)
            raise typer.Exit(getattr(error, "exit_code", 1)) from None


def print_json(document: Any) -> None:
    """Print a JSON document of finite numbers on one line."""
    typer.echo(json.dumps(document, allow_nan=False))


def print_table(document: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print a result as JSON or as the lines of a table."""
    if as_json:
        print_json(document)
    else:
        typer.echo("\n".join(lines))


def print_benchmark(result: str, document: Mapping[str, Any], as_json: bool) -> None:
    """Print the result of a benchmark as JSON, or as the tables that the results page shows."""
    from rfa.benchmarks.results_page.page import tables_of

    print_table(document, tables_of(result, document), as_json)


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
            rows.append((name, text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"))
    return rows


def print_result(document: Mapping[str, Any], as_json: bool) -> None:
    """Print a result as JSON, or as lines with a name and a value each."""
    if as_json:
        print_json(document)
        return
    rows = _rows(document)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")
