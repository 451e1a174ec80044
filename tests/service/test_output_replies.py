"""What the runtime returns is described by replies of the same fields, in the same order."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, cast

import orjson
import pytest

from rfa.runtime import outputs
from rfa.service.schemas import alarm_replies, filter_replies, server_replies
from rfa.service.schemas.base import Reply

RETURNED = [kind for kind in vars(outputs).values() if is_dataclass(kind) and kind.__module__ == outputs.__name__]
REPLY_NAMES = {"FilterStep": "FilterStepReply", "WeightedStep": "FilterStepReply"}
# Fields of a reply that are sent only if they are asked for: by what is returned without them.
UNASKED = {"FilterStep": {"weights"}}


def reply_of(kind: type) -> type[Reply]:
    name = REPLY_NAMES.get(kind.__name__, kind.__name__)
    found: type[Reply] = {**vars(server_replies), **vars(alarm_replies), **vars(filter_replies)}[name]
    return found


@pytest.mark.parametrize("kind", RETURNED, ids=lambda kind: kind.__name__)
def test_a_reply_has_the_fields_of_what_is_sent(kind: type) -> None:
    reply = reply_of(kind)
    assert issubclass(reply, Reply)
    described = [field.name for field in fields(cast(Any, reply))]
    unasked = UNASKED.get(kind.__name__, set())
    assert unasked <= set(described)
    assert [field.name for field in fields(kind)] == [name for name in described if name not in unasked]


@pytest.mark.parametrize("kind", RETURNED, ids=lambda kind: kind.__name__)
def test_what_is_sent_has_the_bytes_of_its_reply(kind: type) -> None:
    values = range(len(fields(kind)))
    described = orjson.loads(orjson.dumps(reply_of(kind)(*values)))
    for name in UNASKED.get(kind.__name__, set()):
        assert described.pop(name) is None
    assert orjson.dumps(kind(*values)) == orjson.dumps(described)
