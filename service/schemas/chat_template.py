"""Template that converts a dialogue to the prompt that a base model reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ROLES: Final = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}
END_OF_TURN: Final = "\nUser:"
# The Jinja template that builds the same prompt, for /info and /tokenizer_info.
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ 'System' if message.role == 'developer' else message.role | capitalize }}: "
    "{{ message.content }}\n{% endfor %}Assistant:"
)


def dialogue(messages: Iterable[tuple[str, str]]) -> str:
    """Return the messages, labelled by their roles, as one prompt that the assistant continues."""
    return "".join(f"{ROLES[role]}: {content}\n" for role, content in messages) + "Assistant:"
