"""Read the configuration file of `rfa watch`. Errors name the line or the key, and what is allowed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from rfa.library.watch.config import Config, Section

MOST_BYTES: Final = 1_048_576
# Descriptions of the values that the pattern of a key allows, for error messages.
_FORMS: Final = {
    "name": "1 to 64 letters, digits and the characters _ . -",
    "redis": 'a URL such as "redis://127.0.0.1:6379/0"',
    "user": "a name without a colon",
}


class ConfigError(ValueError):
    """Raised when a configuration is invalid. The message names the file, the line or key, and what is allowed."""


def load_config(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: If the configuration is invalid.
        OSError: If the file cannot be read.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ConfigError(f"{path}: the file is larger than {MOST_BYTES:,} bytes")
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors on Windows write a byte order mark
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    return parse_config(text, str(path), is_yaml=path.suffix in (".yaml", ".yml"))


def parse_config(text: str, name: str, *, is_yaml: bool = False) -> Config:
    """Check the text of a configuration file, and return its content.

    Raises:
        ConfigError: If the configuration is invalid.
    """
    document = _parse_yaml(text, name) if is_yaml else _parse_toml(text, name)
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        # If a required key is misspelled, there is also an error for the missing key. Report the misspelled one.
        found = error.errors()
        first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
        location = first["loc"]
        line = None if is_yaml else _line_of(text, location)
        where = f"{name}:{line}" if line else name
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
        raise ConfigError(f"{where}: {key + ': ' if key else ''}{_explain(first, location)}") from None


def _explain(error: Any, location: tuple[int | str, ...]) -> str:
    if error["type"] == "extra_forbidden":
        allowed = _fields_at(location[:-1])
        return f"unknown key; the allowed keys are {', '.join(allowed)}" if allowed else "unknown key"
    if error["type"] == "missing":
        return "is required"
    if location == ("query",) and error["type"] == "list_type":
        return "each query begins with [[query]] in TOML, and with a dash in YAML"
    if error["type"] == "dict_type":
        return f"must be a table such as {{name = value}}, got {error['input']!r}"
    if error["type"] == "string_pattern_mismatch" and (form := _FORMS.get(str(location[-1]))):
        return f"must be {form}, got {error['input']!r}"
    return str(error["msg"]).removeprefix("Value error, ")


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Config
    for part in location:
        if isinstance(part, str) and (field := model.model_fields.get(part)) is not None:
            found = [
                kind for kind in kinds_of(field.annotation) if isinstance(kind, type) and issubclass(kind, Section)
            ]
            if not found:
                return []
            model = found[0]
    return list(model.model_fields)


def kinds_of(annotation: Any) -> list[Any]:
    """Return the types in an annotation, such as both types of `X | None` or the element type of a list."""
    inner = getattr(annotation, "__args__", ())
    return [annotation] if not inner else [kind for each in inner for kind in kinds_of(each)]


def _parse_toml(text: str, name: str) -> Any:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{name}: {error}") from None


def _parse_yaml(text: str, name: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError(
            f"{name}: reading YAML needs the package pyyaml; install it with pip install pyyaml, or write TOML"
        ) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{name}: {' '.join(str(error).split())}") from None


def _line_of(text: str, location: tuple[int | str, ...]) -> int | None:
    """Return the line number of a key in TOML. If the key is missing, return the line number of its table, or None if
    the table is missing as well."""
    counts: dict[str, int] = {}
    best, found, table = 0, None, list[int | str]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.-]+)\s*\]", line):
            table = list(header[2].split("."))
            if header[1] == "[[":
                counts[header[2]] = counts.get(header[2], -1) + 1
            if (count := counts.get(str(table[0]))) is not None:
                table.insert(1, count)
            path = table
        elif key := re.match(r'\s*"?([\w.-]+)"?\s*=', line):
            path = [*table, *key[1].split(".")]
        else:
            continue
        common = min(len(path), len(location))
        if tuple(path[:common]) == location[:common] and common > best:
            best, found = common, number
    return found
