"""A server process with hand-made models, for the tests of what is around it. Its texts do what their names say:

    hang     the engine takes the request and never comes back
    slow     each token takes a fiftieth of a second

In the folder FAKE_CHILD_NOTES it leaves notes: the state keys that it was given, and each reload. A file `refuse`
there makes a reload fail.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI

import service.process.child as child
from service.app import create_app
from service.engine.engine import Models
from service.settings import Settings
from service.testing import FakeLanguage, Seen, fake_models

NOTES = Path(os.environ["FAKE_CHILD_NOTES"])


class Moody(FakeLanguage):
    def prefill(self, context: Seen, tokens: Sequence[int]) -> Seen:
        if "hang" in self._text(tokens):
            time.sleep(3600)
        return super().prefill(context, tokens)

    def step(self, contexts: Sequence[Seen], tokens: Sequence[int], noise: Any) -> Any:
        if any("slow" in self._text(context.tokens) for context in contexts):
            time.sleep(0.02)
        return super().step(contexts, tokens, noise)

    def _text(self, tokens: Sequence[int]) -> str:
        return b"".join(self.vocabulary.bytes_of(token) for token in tokens).decode(errors="replace")


def load(settings: Settings) -> Models:
    assert settings.state_keys is not None
    (NOTES / f"key-{os.getpid()}").write_text(settings.state_keys.get_secret_value())
    return fake_models(Moody(script="abcdefghij" * 100))


def create_app_that_reloads(settings: Settings, load: Callable[[Settings], Models]) -> FastAPI:
    app = create_app(settings, load)

    async def reload() -> None:
        begun = time.monotonic()
        if (NOTES / "refuse").exists():
            raise ValueError("the new bundle is broken")
        (NOTES / f"reload-{os.getpid()}").write_text(f"{begun} {time.monotonic()}")

    app.state.reload = reload
    return app


if __name__ == "__main__":
    child.create_app = create_app_that_reloads
    child.main(load)
