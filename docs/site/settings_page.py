"""Settings reference: every `RFA_*` variable with default and bounds."""

from __future__ import annotations

from pydantic.fields import FieldInfo

from docs.site.schema_tables import cell, number
from rfa.service.setting_groups import PREFIX, SettingsGroup
from rfa.service.settings import GROUPS

SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "computed"
    if field.default in (None, ()):
        return "none"
    return f"{field.default:,}" if type(field.default) in (int, float) else f"`{str(field.default).lower()}`"


def _bounds(field: FieldInfo) -> str:
    found = [
        (sign, getattr(part, name)) for part in field.metadata for name, sign in SIGNS.items() if hasattr(part, name)
    ]
    return ", ".join(f"{sign} {number(value)}" for sign, value in found)


def page() -> str:
    """Return the page as Markdown: one section and table per group."""
    return "\n".join(_section(group) for group in GROUPS.values())


def _section(group: type[SettingsGroup]) -> str:
    rows = [
        f"| `{PREFIX}{name.upper()}` | {_default(field)} | {_bounds(field)} | {cell(field.description or '')} |"
        for name, field in group.model_fields.items()
    ]
    return (
        f"## {(group.__doc__ or '').rstrip('.')}\n\n| variable | default | bounds | |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )
