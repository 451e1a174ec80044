"""JSON schemas as Markdown tables: a row for each field, with its type, bounds and default."""

from __future__ import annotations

import json
from typing import Any

BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minLength": "length ≥",
    "maxLength": "length ≤",
    "minItems": "items ≥",
    "maxItems": "items ≤",
}


def cell(text: str) -> str:
    """Escape text for a table cell, on one line."""
    return " ".join(text.replace("|", "\\|").split())


def number(value: float) -> str:
    """Return a bound in short form: 1000000, 1e+12."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e9 else f"{value:.9g}"


def type_of(schema: dict[str, Any]) -> str:
    """Describe a type, with links to named schemas."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(type_of(option) for option in options)
    if schema.get("type") == "array":
        words = f"list of {type_of(schema['items'])}" if "items" in schema else "list"
    elif isinstance(schema.get("additionalProperties"), dict):
        words = f"object of {type_of(schema['additionalProperties'])}"
    elif choices := schema.get("enum", [schema["const"]] if "const" in schema else []):
        words = " or ".join(f"`{json.dumps(choice)}`" for choice in choices)
    else:
        words = schema.get("type", "any")
    bounds = [f"{sign} {number(schema[key])}" for key, sign in BOUNDS.items() if key in schema]
    return f"{words} {', '.join(bounds)}".strip()


def fields_table(schema: dict[str, Any]) -> str:
    """Return a table of an object's fields, or an empty string if it has none."""
    required = set(schema.get("required", ()))
    rows = []
    for name, field in schema.get("properties", {}).items():
        default = f"`{json.dumps(field['default'])}`" if "default" in field else "–"
        state = "required" if name in required else default
        rows.append(f"| `{name}` | {cell(type_of(field))} | {cell(state)} | {cell(field.get('description', ''))} |")
    head = "| field | type | default | |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n" if rows else ""
