"""Base classes of requests and replies. The supervisor imports them, so they do not import NumPy."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_UNKNOWN = 16


class FieldError(ValueError):
    """Raised if fields contradict each other. It names the field that the client should change."""

    def __init__(self, param: str, message: str, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message
        self.code = code


class Request(BaseModel):
    """Base class of requests. Types are strict, all fields are bounded and unknown fields are errors.

    Lists stop at their first error (`fail_fast`), and only a few unknown fields are checked. Otherwise a request with
    100,000 errors takes seconds and gigabytes, although the reply reports only the first error.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def drop_most_unknown_fields(cls, document: Any) -> Any:
        """Remove all but the first `MAX_UNKNOWN` unknown fields, because each of them becomes an error."""
        if type(document) is not dict or len(document) <= MAX_UNKNOWN:
            return document
        dropped = set([name for name in document if name not in cls.model_fields][MAX_UNKNOWN:])
        return {name: value for name, value in document.items() if name not in dropped} if dropped else document


def _describe(schema: dict[str, Any], kind: type[Reply]) -> None:
    schema["description"] = inspect.getdoc(kind)
    if kind.always is not None:
        schema["required"] = list(kind.always)


class Reply:
    """Base class of replies. Replies are dataclasses that orjson encodes directly; OpenAPI and the tests read them
    through pydantic.

    Replies are not validated. Most are neither frozen nor slotted, because thousands are created per second: freezing
    takes longer than assigning the fields, and orjson takes twice as long with slots. orjson omits the slots of a base
    class, so do not inherit from a reply with slots.

    Attributes:
        always: the required fields, for replies whose other fields the request selects.
    """

    __slots__ = ()
    always: ClassVar[tuple[str, ...] | None] = None
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, json_schema_extra=_describe
    )


def says(description: str, **bounds: Any) -> Any:
    """Return an annotation with the description of a reply field."""
    return Field(description=description, **bounds)
