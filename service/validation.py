"""What pydantic complains about, in the one error shape: the field and what was expected, never the input."""

from __future__ import annotations

from typing import Any

from service.errors import InvalidRequest
from service.schemas import FieldError

LONGEST_FIELD_NAME = 64
PLAIN_WORDS = {
    "missing": "Field required",
    "extra_forbidden": "Unknown field",
    "model_type": "Must be a JSON object",
    "int_type": "Must be an integer of at most 64 bits",
}


def validation_failure(details: list[dict[str, Any]], document: str = "The body") -> InvalidRequest:
    """The first of pydantic's complaints.

    Args:
        details: `errors()` of a ValidationError.
        document: what was read, where no field is to name.
    """
    first = details[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return InvalidRequest(cause.message, param=cause.param, code=cause.code)
    param = field_path(first["loc"])
    code = first["type"].replace("model_attributes_type", "model_type")
    expected = PLAIN_WORDS.get(code, first["msg"])
    more = f" ({len(details) - 1} more)" if len(details) > 1 else ""
    return InvalidRequest(f"{param or document}: {expected}.{more}", param=param or None, code=code)


def field_path(location: tuple[int | str, ...]) -> str:
    """`("observations", 2, 0)` as `observations[2][0]`; a name the client made up is cut and cleaned."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name = "".join(character if character.isalnum() or character in "_-" else "?" for character in part)
            path += ("." if path else "") + name[:LONGEST_FIELD_NAME]
    return path
