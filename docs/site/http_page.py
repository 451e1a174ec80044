"""The reference of the HTTP interface, from the OpenAPI document of the application that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from docs.site.schema_tables import cell, fields_table, type_of
from rfa.service.app import create_app
from rfa.service.openapi import openapi_of
from rfa.service.schemas.requests import FilterStreamRequest, StreamClose, StreamObservation
from rfa.service.settings import Settings

# Frames of a live stream: OpenAPI knows no WebSockets.
FRAMES_IN: tuple[type[BaseModel], ...] = (FilterStreamRequest, StreamObservation, StreamClose)


def _item_of(content: dict[str, Any]) -> dict[str, Any]:
    """Schema of a body, or of one line of a stream."""
    schema: dict[str, Any] = content.get("schema") or content.get("itemSchema") or {}
    return schema.get("properties", {}).get("data", {}).get("contentSchema", schema)


def _responses(responses: dict[str, Any]) -> str:
    rows = ["| status | body | |", "|---|---|---|"]
    for status, response in responses.items():
        bodies = [f"`{kind}`: {type_of(_item_of(content))}" for kind, content in response.get("content", {}).items()]
        description = cell(response.get("description", ""))
        rows.append(f"| {status} | {cell('; '.join(bodies))} | {description} |")
    return "\n".join(rows) + "\n"


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"### {method.upper()} {path}\n", operation.get("description", "") + "\n"]
    parts += [
        f"`{parameter['name']}` in the {parameter['in']}: {type_of(parameter['schema'])}.\n"
        for parameter in operation.get("parameters", ())
    ]
    if "requestBody" in operation:
        bodies = operation["requestBody"]["content"]
        parts.append(
            "Body: " + ", ".join(f"`{kind}`, {type_of(_item_of(body))}" for kind, body in bodies.items()) + ".\n"
        )
    return "\n".join([*parts, _responses(operation["responses"])])


def _schema(name: str, schema: dict[str, Any]) -> str:
    return f"### {name}\n\n{schema.get('description', '')}\n\n{fields_table(schema) or type_of(schema) + chr(10)}"


def _frames() -> Iterator[str]:
    for model in FRAMES_IN:
        yield _schema(model.__name__, model.model_json_schema(ref_template="#/{model}"))


def page() -> str:
    """Markdown: the paths by subject, the frames of a live stream, every schema."""
    document = openapi_of(create_app(Settings()))
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    parts = [f"## Paths: {tag}\n\n" + "\n".join(found) for tag, found in by_tag.items()]
    parts.append("## Frames of a live stream\n\nWhat a client sends on `/filter/stream`.\n\n" + "\n".join(_frames()))
    listed = document["components"]["schemas"]
    known = {model.__name__ for model in FRAMES_IN}
    parts.append(
        "## Schemas\n\n" + "\n".join(_schema(name, listed[name]) for name in sorted(listed) if name not in known)
    )
    return "\n\n".join(parts)
