"""Counts and mistakes recorded by the clients of a scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_EXAMPLES = 10
# Codes of rejections after which a client may try again.
TRANSIENT = frozenset({"not_ready", "overloaded", "sessions_unavailable", "session_moved"})


@dataclass
class Findings:
    """Counts of permitted events and of mistakes, with examples of mistakes."""

    counts: Counter[str] = field(default_factory=Counter)
    mistakes: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def mistake(self, kind: str, example: str) -> None:
        """Count a mistake of the server."""
        self.mistakes[kind] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{kind}: {example}")

    def is_transient(self, name: str, error: Mapping[str, Any]) -> bool:
        """Count an error. Return whether the client may try again; otherwise it is a mistake of the server."""
        code = str(error.get("code"))
        if code in TRANSIENT:
            self.counts[f"told {code}"] += 1
            return True
        self.mistake("error", f"{name} was told {code}")
        return False

    def to_document(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return {
            "counts": dict(sorted(self.counts.items())),
            "mistakes": dict(sorted(self.mistakes.items())),
            "examples": self.examples,
        }
