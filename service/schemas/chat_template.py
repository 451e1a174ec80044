"""Convert a dialogue to a prompt for a model that was not trained on dialogues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ROLES: Final = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}
END_OF_TURN: Final = "\nUser:"
# Jinja template that creates the same prompt as `dialogue`, for /info and /tokenizer_info.
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ 'System' if message.role == 'developer' else message.role | capitalize }}: "
    "{{ message.content }}\n{% endfor %}Assistant:"
)


def dialogue(messages: Iterable[tuple[str, str]]) -> str:
    """Convert messages to one prompt, in which each message begins with its role. The next message is that of the
    assistant.

    Args:
        messages: Pairs of the role and the content of a message.
    """
    return "".join(f"{ROLES[role]}: {content}\n" for role, content in messages) + "Assistant:"
