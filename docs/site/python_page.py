"""Python reference: signatures and docstrings, which are Markdown with indented formulas."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import rfa

# Modules that users call directly, in addition to `import rfa`.
MODULES = (
    "rfa.model.linear_filter",
    "rfa.runtime.filters.driven",
    "rfa.runtime.filters.fusion",
    "rfa.runtime.bundle.bundle",
)
SECTIONS = ("Args", "Returns", "Raises", "Yields")
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):\n((?:(?: {{4}}.*)?(?:\n|$))+)", re.MULTILINE)
_ENTRY = re.compile(r"^([\w*, ]+): (.*)$", re.DOTALL)


def _items(match: re.Match[str]) -> str:
    """Convert a section of a Google-style docstring to a list."""
    entries: list[str] = []
    for line in inspect.cleandoc(match[2]).splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        elif line:
            entries.append(line)
    if match[1] in ("Returns", "Yields"):
        return f"*{match[1]}*: {' '.join(entries)}\n\n"
    named = [_ENTRY.sub(r"- `\1`: \2", entry) for entry in entries]
    return f"*{match[1]}*\n\n" + "\n".join(named) + "\n\n"


def markdown(docstring: str) -> str:
    """Convert a docstring to Markdown. Sections become lists; the rest is Markdown already."""
    return _SECTION.sub(_items, inspect.cleandoc(docstring) + "\n")


def _signature(value: Any) -> str:
    """Return a signature with annotations without quotes and module names."""
    text = re.sub(
        r"(: |-> )'([^']*)'", r"\1\2", re.sub(r"ForwardRef\('([^']*)'\)", r"\1", str(inspect.signature(value)))
    )
    return re.sub(r"\b(?:[a-z_]\w*\.)+([A-Za-z]\w*)", r"\1", text)


def _directive(kind: str, name: str, signature: str, body: str, fence: str = "````") -> str:
    return f"{fence}{{py:{kind}}} {name}{signature}\n\n{body}\n{fence}\n"


def _members(value: type) -> Iterator[str]:
    for name, member in vars(value).items():
        found = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(found) or not found.__doc__:
            continue
        kind = "property" if isinstance(member, property) else "method"
        shown = "" if kind == "property" else re.sub(r"^\(self(?:, )?", "(", _signature(found))
        yield _directive(kind, name, shown, markdown(found.__doc__))


def _entry(name: str, value: Any) -> str:
    body = markdown(value.__doc__ or "")
    if not inspect.isclass(value):
        return _directive("function", name, _signature(value), body)
    signature = _signature(value).removesuffix(" -> None")
    return _directive("class", name, signature, "\n".join([body, *_members(value)]), fence="``````")


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        is_own = getattr(value, "__module__", None) == module.__name__ and callable(value)
        if is_own and not name.startswith("_") and getattr(value, "__doc__", None):
            yield name, value


def page() -> str:
    """Return the page as Markdown: the names of `import rfa`, then the modules."""
    parts = ["## rfa\n"]
    parts += [_entry(f"rfa.{name}", getattr(rfa, name)) for name in rfa.__all__]
    for place in MODULES:
        module = import_module(place)
        parts.append(f"## {place}\n\n{markdown(module.__doc__ or '')}\n")
        parts += [_entry(f"{place}.{name}", value) for name, value in _public(module)]
    return "\n".join(parts)
