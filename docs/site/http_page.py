"""HTTP reference, generated from the application's OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from docs.site.schema_tables import cell, fields_table, type_of
from rfa.service.app import create_app
from rfa.service.errors import RowErrorReply
from rfa.service.openapi import openapi_of
from rfa.service.schemas.filter_replies import LateStep, StreamDone, StreamReady, StreamStepReply
from rfa.service.schemas.stream_requests import FilterStreamRequest, StreamClose, StreamObservation
from rfa.service.settings import Settings

# Frames of a live stream, because OpenAPI does not describe WebSockets.
FRAMES_IN: tuple[type, ...] = (FilterStreamRequest, StreamObservation, StreamClose)
FRAMES_OUT: tuple[type, ...] = (StreamReady, StreamStepReply, LateStep, RowErrorReply, StreamDone)


def _item_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a body, or of one line of a stream."""
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
    for parameter in operation.get("parameters", ()):
        description = f". {parameter['description']}" if "description" in parameter else "."
        parts.append(f"`{parameter['name']}` in the {parameter['in']}: {type_of(parameter['schema'])}{description}\n")
    if "requestBody" in operation:
        bodies = operation["requestBody"]["content"]
        parts.append(
            "Body: " + ", ".join(f"`{kind}`, {type_of(_item_of(body))}" for kind, body in bodies.items()) + ".\n"
        )
    return "\n".join([*parts, _responses(operation["responses"])])


def _schema(name: str, schema: dict[str, Any]) -> str:
    return f"### {name}\n\n{schema.get('description', '')}\n\n{fields_table(schema) or type_of(schema) + chr(10)}"


def frame_schemas(frames: tuple[type, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and JSON schemas of frames. Their references point to schemas of the document."""
    for frame in frames:
        yield frame.__name__, TypeAdapter(frame).json_schema(ref_template="#/{model}", mode="serialization")


def _frames(frames: tuple[type, ...]) -> str:
    return "\n".join(_schema(name, schema) for name, schema in frame_schemas(frames))


def page() -> str:
    """Return the page as Markdown: the paths by tag, the frames of a live stream, and every schema."""
    document = openapi_of(create_app(Settings()))
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    parts = [f"## Paths: {tag}\n\n" + "\n".join(found) for tag, found in by_tag.items()]
    parts.append(
        "## Frames of a live stream\n\nA client sends these frames on `/filter/stream`, the first one first:\n\n"
        + _frames(FRAMES_IN)
        + "\nThe server sends one frame when it is ready, one for each observation, and one at the end. "
        "A refused observation gets a RowErrorReply, and the stream continues. Any other error ends the stream with an "
        "ErrorReply instead of the last frame.\n\n" + _frames(FRAMES_OUT)
    )
    listed = document["components"]["schemas"]
    frames = {frame.__name__ for frame in (*FRAMES_IN, *FRAMES_OUT)}
    parts.append(
        "## Schemas\n\n" + "\n".join(_schema(name, listed[name]) for name in sorted(listed) if name not in frames)
    )
    return "\n\n".join(parts)
