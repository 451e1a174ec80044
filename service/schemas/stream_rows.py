"""Reject single invalid rows of a request with `stream`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rfa.runtime.errors import InvalidInput
from rfa.service.validation import validation_failure

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=_STRICT)


def refuse_rows(document: Any, kinds: Mapping[str, Any]) -> tuple[Any, dict[int, InvalidInput]]:
    """Validate each row of a request separately. Return the document without invalid rows, and their errors by
    position.

    In the document, an invalid row is replaced by None, and an invalid time by 0. If the request does not have `stream`
    and rows, it is returned unchanged and without errors.

    Args:
        document: Body of the request.
        kinds: Types of the fields with one value per row.
    """
    if type(document) is not dict or document.get("stream") is not True:
        return document, {}
    if document.get("smooth") or document.get("mode") == "attention":  # these need all rows
        return document, {}
    columns = {name: document[name] for name in kinds if type(document.get(name)) is list}
    if "observations" not in columns:
        return document, {}
    count = len(columns["observations"])
    refused: dict[int, Any] = {}
    for name, values in columns.items():
        check = _adapter(kinds[name]).validate_python
        for i, value in enumerate(values[:count]):
            try:
                check(value)
            except ValidationError as error:
                details = error.errors(include_url=False, include_input=False)
                found = validation_failure([{**one, "loc": (name, i, *one["loc"])} for one in details])
                refused.setdefault(i, InvalidInput(found.message, param=found.param, code=found.code))
    cleaned: dict[str, Any] = {
        name: [None if i in refused else value for i, value in enumerate(values)]
        for name, values in columns.items()
        if name != "times"
    }
    if "times" in columns:
        bad = {i for i, error in refused.items() if str(error.param).startswith("times")}
        cleaned["times"] = [0.0 if i in bad else t for i, t in enumerate(columns["times"])]
    return {**document, **cleaned}, refused
