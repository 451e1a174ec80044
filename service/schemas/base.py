"""Base classes of requests and replies. The supervisor imports them, so they do not import NumPy."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_UNKNOWN = 16


class FieldError(ValueError):
    """A rule between fields is violated; has the field that the client should change."""

    def __init__(self, param: str, message: str, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message
        self.code = code


class Request(BaseModel):
    """Base of requests: strict types, bounded fields, no unknown fields.

    Lists stop at their first error (`fail_fast`), and only some unknown fields are checked: 100,000 errors, of which
    one is reported, took seconds and gigabytes.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def drop_most_unknown_fields(cls, document: Any) -> Any:
        """Keep the first `MAX_UNKNOWN` unknown fields; each of them is an error."""
        if type(document) is not dict or len(document) <= MAX_UNKNOWN:
            return document
        dropped = set([name for name in document if name not in cls.model_fields][MAX_UNKNOWN:])
        return {name: value for name, value in document.items() if name not in dropped} if dropped else document


def _describe(schema: dict[str, Any], kind: type[Reply]) -> None:
    schema["description"] = inspect.getdoc(kind)
    if kind.always is not None:
        schema["required"] = list(kind.always)


class Reply:
    """Base of replies: dataclasses that orjson encodes directly. OpenAPI and tests read them through pydantic.

    Replies are not validated. Thousands are made per second, so most are neither frozen nor have slots: freezing costs
    more than the fields, and orjson takes twice as long with slots. orjson omits the slots of a base class, so a reply
    with slots must not be inherited from.

    Attributes:
        always: the required fields, if the request selects the others.
    """

    __slots__ = ()
    always: ClassVar[tuple[str, ...] | None] = None
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, json_schema_extra=_describe
    )


def says(description: str, **bounds: Any) -> Any:
    """Annotation of a reply's field with its description."""
    return Field(description=description, **bounds)
