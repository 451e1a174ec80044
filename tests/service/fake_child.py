"""A server process with hand-made models, for the tests of what is around it. Its texts do what their names say:

    hang     the engine takes the request and never comes back
    slow     each token takes a fiftieth of a second

Its bundles are folders with a file `manifest.json` of any content, which is what the model recites.

In the folder FAKE_CHILD_NOTES it leaves notes: the state keys that it was given, and when it loaded. A file there that
is named for its process id makes it misbehave when it loads bundles anew (`refuse-PID`, `die-PID`) or when it beats
(`babble-PID` says what is no message).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from rfa.service.engine.models import Models
from rfa.service.process import child
from rfa.service.process.channel import Channel
from rfa.service.settings import Settings
from tests.service.models import FakeLanguage, Seen, SeenMore, fake_models, model_info

NOTES = Path(os.environ["FAKE_CHILD_NOTES"])
PID = os.getpid()


class Moody(FakeLanguage):
    def prefill(self, contexts: Sequence[Seen], pieces: Sequence[Sequence[int]]) -> list[SeenMore]:
        if any("hang" in self._text(piece) for piece in pieces):
            time.sleep(3600)
        return super().prefill(contexts, pieces)

    def step(self, contexts: Sequence[Seen], tokens: Sequence[int], noise: Any) -> Any:
        if any("slow" in self._text(context.tokens) for context in contexts):
            time.sleep(0.02)
        return super().step(contexts, tokens, noise)

    def _text(self, tokens: Sequence[int]) -> str:
        return b"".join(self.vocabulary.bytes_of(token) for token in tokens).decode(errors="replace")


def load(settings: Settings) -> Models:
    assert settings.state.state_keys is not None
    begun, is_first = time.monotonic(), not list(NOTES.glob(f"load-{PID}-*"))
    (NOTES / f"key-{PID}").write_text(settings.state.state_keys.get_secret_value())
    contents = [(path / "manifest.json").read_bytes() for path in settings.models.bundles]
    if not is_first:
        misbehave()
    (NOTES / f"load-{PID}-{begun}").write_text(f"{begun} {time.monotonic()}")
    models = fake_models(Moody(script=contents[0].decode() * 1000))
    facts = [
        model_info(found.name, found.kind, sha256(content).hexdigest())
        for found, content in zip(models.facts, contents, strict=True)
    ]
    return Models(models.languages, models.filters, facts)


def misbehave() -> None:
    """Do what a note asks for, once."""
    if is_asked("refuse"):
        raise ValueError("the new bundle is broken " * 100_000)
    if is_asked("die"):
        os._exit(7)


def is_asked(what: str) -> bool:
    note = NOTES / f"{what}-{PID}"
    was_asked = note.exists()
    note.unlink(missing_ok=True)
    return was_asked


class Babbling(Channel):
    """An end that at times says what is no message."""

    async def send(self, kind: str, **fields: Any) -> None:
        if kind == "beat" and is_asked("babble"):
            self._writer.write(b"{\n")
        await super().send(kind, **fields)


if __name__ == "__main__":
    child.Channel = Babbling  # type: ignore[misc]
    child.main(load)
