"""Annotations for request fields that clients of other servers send.

A field that is not supported accepts only values that have no effect. Therefore, clients that always send all fields
with their defaults work, and no option is ignored without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Only:
    """Annotation of a field that accepts only some values, as in `Annotated[Any, Only(None, 1)]`.

    The class does not define equality. Python caches `Annotated[...]`, and because 0.0 == False, two fields would share
    an annotation.

    Args:
        values: Accepted values.
        reason: Reason why other values are rejected, for error messages.
    """

    def __init__(self, *values: Any, reason: str = "this value is not supported") -> None:
        self.values = values
        self.reason = reason

    def check(self, value: Any) -> Any:
        """Check a value, and return it.

        Raises:
            PydanticCustomError: If the value is not accepted (`not_supported`).
        """
        # In JSON, 1 equals 1.0, but not `true`.
        if any(isinstance(value, bool) == isinstance(own, bool) and value == own for own in self.values):
            return value
        named = " or ".join(orjson.dumps(own).decode() for own in self.values)
        reason = self.reason[0].upper() + self.reason[1:]
        raise PydanticCustomError("not_supported", "{reason}; must be {named}", {"reason": reason, "named": named})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.values)}


@dataclass(frozen=True, eq=False)
class NullIs:
    """Annotation of a field in which null is replaced by `default`, because some clients send null for fields that are
    not set."""

    default: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def replace_null(value: Any) -> Any:
            return self.default if value is None else value

        return core_schema.no_info_before_validator_function(replace_null, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "null"}]}


@dataclass(frozen=True)
class OneOf:
    """Annotation of a union that results in one error message, instead of one for each member of the union.

    Attributes:
        expected: Description of the accepted values.
    """

    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def try_all(value: Any, members: Callable[[Any], Any]) -> Any:
            try:
                return members(value)
            except ValueError:
                raise PydanticCustomError("no_member", "Must be {expected}", {"expected": self.expected}) from None

        return core_schema.no_info_wrap_validator_function(try_all, handler(source))
