"""The command: record replies, or compare with recorded ones."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from tests.conformance.replies import record
from tests.conformance.server import serving

# Fields that hold words for people.
WORDS: Final = frozenset({"message", "description", "summary", "title", "notes", "reason", "metrics"})
SHOWN: Final = 5


def differences(old: Any, new: Any, path: str = "", *, is_text: bool = False) -> Iterator[tuple[bool, str, Any, Any]]:
    """Each value that differs: whether it is text, its path, and both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            text = is_text or (key in WORDS and isinstance(old.get(key), str | list))
            if key not in old or key not in new:
                yield text, f"{path}.{key}", old.get(key, "(absent)"), new.get(key, "(absent)")
            else:
                yield from differences(old[key], new[key], f"{path}.{key}", is_text=text)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield is_text, f"{path}.length", len(old), len(new)
        for index, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from differences(before, after, f"{path}[{index}]", is_text=is_text)
    elif type(old) is not type(new) or old != new:
        yield is_text, path, old, new


def compare(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Print what differs; whether numbers or keys do."""
    found = {name: list(differences(old.get(name, {}), new.get(name, {}))) for name in {**old, **new}}
    has_failed = False
    for kind, is_text in (("text", True), ("numbers and keys", False)):
        chosen = {name: rows for name, all_ in found.items() if (rows := [row for row in all_ if row[0] is is_text])}
        print(f"\n{len(chosen)} of {len(found)} requests differ in {kind}")
        for name, rows in chosen.items():
            print(f"  {name}: {len(rows)} values")
            for _, path, before, after in rows[:SHOWN]:
                print(f"    {path}: {json.dumps(before)[:300]} → {json.dumps(after)[:300]}")
        has_failed = bool(chosen)
    return has_failed


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path, help="the recording, as JSON")
    parser.add_argument("--code", type=Path, default=Path(), help="checkout whose server is started; default this one")
    parser.add_argument("--url", help="a running server, in place of --code")
    arguments = parser.parse_args()
    with nullcontext(arguments.url) if arguments.url else serving(arguments.code) as url:
        # Through JSON, as the recorded replies.
        replies = json.loads(json.dumps(record(url), allow_nan=True))
    if arguments.action == "record":
        arguments.file.write_text(json.dumps(replies, sort_keys=True))
        print(f"{len(replies)} replies recorded")
    else:
        sys.exit(compare(json.loads(arguments.file.read_text()), replies))


if __name__ == "__main__":
    main()
