"""Request fields that clients of other servers send.

An unsupported field accepts only values that have no effect. Therefore clients that always send their defaults work,
and no option is ignored silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Only:
    """Annotation of a field that accepts only the given values, with the reason, as in `Annotated[Any, Only(None, 1)]`.

    It does not define equality: Python caches `Annotated[...]`, and because 0.0 == False two fields would share an
    annotation.
    """

    def __init__(self, *values: Any, reason: str = "not supported here") -> None:
        self.values = values
        self.reason = reason

    def check(self, value: Any) -> Any:
        """Return the value if it is accepted, and raise an error otherwise.

        Raises:
            PydanticCustomError: If it is not, with the code `not_supported`.
        """
        # JSON's 1 equals 1.0, but not `true`.
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
    """Annotation that replaces null in a request by `default`, because some clients send null for fields that are not
    set.
    """

    default: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def replace_null(value: Any) -> Any:
            return self.default if value is None else value

        return core_schema.no_info_before_validator_function(replace_null, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "null"}]}


@dataclass(frozen=True)
class OneOf:
    """Annotation that gives a union a single error message instead of one per member."""

    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def try_all(value: Any, members: Callable[[Any], Any]) -> Any:
            try:
                return members(value)
            except ValueError:
                raise PydanticCustomError("no_member", "Must be {expected}", {"expected": self.expected}) from None

        return core_schema.no_info_wrap_validator_function(try_all, handler(source))
