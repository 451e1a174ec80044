"""Base classes of requests and replies. The supervisor imports them, so they do not import NumPy."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_UNKNOWN = 16


class FieldError(ValueError):
    """Raised if fields contradict each other.

    Args:
        param: Path of the field that the client should change.
        message: Description of the error.
        code: Precise reason for the error, as an identifier.
    """

    def __init__(self, param: str, message: str, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message
        self.code = code


class Request(BaseModel):
    """Base class of requests. Types are strict, all fields have bounds, and unknown fields are errors.

    The validation of a list stops at the first error (`fail_fast`), and only a few unknown fields are reported.
    Otherwise, a request with 100,000 errors would take seconds and gigabytes, although the reply contains only the
    first error.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def drop_most_unknown_fields(cls, document: Any) -> Any:
        """Remove unknown fields after the first `MAX_UNKNOWN` ones, because each unknown field becomes an error."""
        if type(document) is not dict or len(document) <= MAX_UNKNOWN:
            return document
        dropped = set([name for name in document if name not in cls.model_fields][MAX_UNKNOWN:])
        return {name: value for name, value in document.items() if name not in dropped} if dropped else document


def _describe(schema: dict[str, Any], kind: type[Reply]) -> None:
    schema["description"] = inspect.getdoc(kind)
    if kind.always is not None:
        schema["required"] = list(kind.always)


class Reply:
    """Base class of replies. Replies are dataclasses that orjson encodes directly. Pydantic only provides their schemas
    for OpenAPI.

    Replies are not validated. Most are neither frozen nor slotted, because thousands are created per second: freezing
    takes longer than assigning the fields, and orjson takes twice as long with slots. orjson omits the slots of a base
    class, so do not inherit from a reply with slots.

    Attributes:
        always: Names of the required fields, if the request selects the other ones. None if all fields are required.
    """

    __slots__ = ()
    always: ClassVar[tuple[str, ...] | None] = None
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, json_schema_extra=_describe
    )


def says(description: str, **bounds: Any) -> Any:
    """Return an annotation with the description and the bounds of a reply field."""
    return Field(description=description, **bounds)
