"""Validate documents. Errors name the field and say what was expected. They do not contain values of the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from rfa.service.errors import InvalidRequest
from rfa.service.schemas.base import FieldError
from rfa.service.setting_groups import LimitSettings

Model = TypeVar("Model", bound=BaseModel)
LONGEST_FIELD_NAME = 64
# Fields with one value per observation, in addition to the columns of `values`.
SERIES = ("observations", "times", "noise", "input", "bias")
PLAIN_WORDS = {
    "missing": "Field required",
    "extra_forbidden": "Unknown field",
    "model_type": "Must be a JSON object",
    "int_type": "Must be an integer of at most 64 bits",
}
# Messages for a number in place of a row.
ROW_WORDS = {
    "observations": 'Must be a list with one number per column, even for a single column: "observations": '
    '[[21.4], [21.5]], or "values": {"y": [21.4, 21.5]}',
    "y": 'Must be a list with one number per column, even for a single column: "y": [21.4]',
}


def check_lengths(document: Any, settings: LimitSettings) -> None:
    """Check the number of observations and series in a request, before it is validated.

    Raises:
        InvalidRequest: If there are too many (`too_large`).
    """
    if type(document) is not dict:
        return
    series = document.get("series")
    if type(series) is dict:
        _check_series(series, settings)
    for name, values in _of_observations(document):
        if type(values) in (list, np.ndarray, range) and len(values) > settings.max_observations:
            limit = settings.max_observations
            raise InvalidRequest(
                f"{name} must contain at most {limit} items on this server, got {len(values)}.",
                param=name,
                code="too_large",
            )


def _check_series(series: Mapping[str, Any], settings: LimitSettings) -> None:
    # Arrow columns have their own limits.
    if len(series) > settings.max_series:
        message = f"series must contain at most {settings.max_series} series on this server, got {len(series)}."
        raise InvalidRequest(message, param="series", code="too_large")
    count, limit = sum(map(_observations, series.values())), settings.max_series_observations
    if count > limit:
        message = f"series must contain at most {limit} observations in total on this server, got {count}."
        raise InvalidRequest(message, param="series", code="too_large")


def _of_observations(one: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field that has one value per observation. The series has not been validated
    yet."""
    yield from ((name, one.get(name)) for name in SERIES)
    columns = one.get("values")
    if type(columns) is dict:
        yield from ((f"values.{name}", column) for name, column in columns.items())
    else:
        yield "values", columns


def _observations(one: Any) -> int:
    """Return the number of observations of a series that has not been validated yet."""
    if type(one) is not dict:
        return 0
    return max((len(values) for _, values in _of_observations(one) if type(values) is list), default=0)


def validated(model: type[Model], document: Any, name: str) -> Model:
    """Validate a document, and return the model.

    Args:
        name: Name of the document in messages.

    Raises:
        InvalidRequest: If the document is invalid. The message describes the first error.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        # The input may be large, and is not part of the message.
        raise validation_failure(error.errors(include_url=False, include_input=False), name) from None


def validation_failure(details: Sequence[Mapping[str, Any]], document: str = "The body") -> InvalidRequest:
    """Convert the first error of pydantic to an `InvalidRequest`.

    Args:
        details: Result of `ValidationError.errors`.
        document: Name of the document, for errors that do not belong to a field.
    """
    first = details[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return InvalidRequest(cause.message, param=cause.param, code=cause.code)
    param = field_path(first["loc"])
    code = first["type"].replace("model_attributes_type", "model_type")
    expected = PLAIN_WORDS.get(code, first["msg"])
    if code == "list_type" and (names := [part for part in first["loc"] if isinstance(part, str)]):
        expected = ROW_WORDS.get(names[-1], expected)
    if first["loc"][:1] == ("times",) and code in ("float_type", "float_parsing"):
        expected += "; send dates as seconds since 1970-01-01 UTC, or as Arrow"
    more = f" ({len(details) - 1} more)" if len(details) > 1 else ""
    return InvalidRequest(f"{param or document}: {expected}.{more}", param=param or None, code=code)


def field_path(location: tuple[int | str, ...]) -> str:
    """Return the path of a field as text, such as `observations[2][0]` for `("observations", 2, 0)`. Long names are
    shortened, and characters other than letters, digits, _ and - are replaced by `?`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("constrained-"):  # name of pydantic for a member of a union
            name = "".join(character if character.isalnum() or character in "_-" else "?" for character in part)
            path += ("." if path else "") + name[:LONGEST_FIELD_NAME]
    return path
