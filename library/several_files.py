"""Read directories, patterns and lists of files. Each file is processed separately, and the results are
concatenated."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa

from rfa.data.source import display_names, expand_sources
from rfa.data.table import unique_names
from rfa.library.incidents import Detection
from rfa.library.reading import describe_failures, stack_level
from rfa.runtime.filters.fitted import Models
from rfa.runtime.uncertainty.alarms import count_alarms

# Name of the first column of concatenated results. It contains the name of the file.
FILE: Final = "file"
Function = TypeVar("Function", bound=Callable[..., Any])


def takes_files(function: Function) -> Function:
    """Return a function that also accepts directories, patterns and lists of files as its first argument.

    The decorated function accepts a data frame or a single file. It is called for each file, and the results are
    concatenated.
    """

    @functools.wraps(function)
    def take(data: Any, *positional: Any, **named: Any) -> Any:
        sources = named_sources(data)
        if sources is None:
            return function(data, *positional, **named)
        found: dict[str, Any] = {}
        failed: dict[str, str] = {}
        for name, source in sources.items():
            try:
                found[name] = function(source, *positional, **_of_file(named, name))
            except ValueError as error:
                failed[name] = str(error)
        if failed:
            left_out = describe_failures(failed, "file")
            if not found:
                raise ValueError(left_out)
            warnings.warn(f"some data is left out: {left_out}", UserWarning, stacklevel=stack_level())
        return _join(found)

    return take  # type: ignore[return-value]


def _of_file(named: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the arguments for one file. If `system` contains models that `rfa.fit` fitted to this file, they are
    selected."""
    system = named.get("system")
    if not isinstance(system, Models):
        return named
    ours = {label.removeprefix(f"{name} / "): one for label, one in system.items() if label.startswith(f"{name} / ")}
    return {**named, "system": Models(ours)} if ours else named


def named_sources(data: Any) -> dict[str, str] | None:
    """Return a mapping from names of several files to paths. If names are not unique, the keys are paths. Return None
    if `data` is a single file, or neither a path nor a list of paths."""
    is_one = isinstance(data, str | Path)
    listed = [data] if is_one else data if isinstance(data, list | tuple) else []
    if not listed or not all(isinstance(one, str | Path) for one in listed):
        return None
    given = [str(one) for one in listed]
    if is_one and not Path(given[0]).is_dir() and not re.search(r"[*?\[]", given[0]):
        return None
    files = expand_sources(given)
    if is_one and files == given:
        return None
    return dict(zip(display_names(files), files, strict=True))


def _join(found: Mapping[str, Any]) -> Any:
    results = list(found.values())
    if hasattr(results[0], "joined"):
        return results[0].joined(found)
    if not isinstance(results[0], Detection):
        return _join_frames(found)
    asked = sum(one.observations for one in results)
    expected, raised = sum(one.expected for one in results), sum(one.raised for one in results)
    checks = count_alarms(asked, expected, raised)
    rows, incidents = ({name: getattr(one, part) for name, one in found.items()} for part in ("rows", "incidents"))
    bound = None if checks is None else checks.bound
    omitted = sum(one.omitted for one in results)
    return Detection(_join_frames(rows), _join_frames(incidents), raised, expected, asked, bound, omitted)


def _join_frames(frames: Mapping[str, Any]) -> Any:
    """Concatenate tables, and add the names of their files as the first column."""
    first = next(iter(frames.values()))
    if isinstance(first, pa.Table):
        tables = [
            table.add_column(0, _column_name(table.column_names), pa.array([name] * len(table), pa.string()))
            for name, table in frames.items()
        ]
        return pa.concat_tables(tables, promote_options="permissive")
    import pandas

    for name, frame in frames.items():
        frame.insert(0, _column_name(frame.columns), name)
    return pandas.concat(list(frames.values()), ignore_index=True)


def _column_name(names: Sequence[Any]) -> str:
    return unique_names([*map(str, names), FILE])[-1]
