"""A server process with one planted fault, to prove that what looks for such faults finds them.

FAULT is one of

    none        nothing is planted
    leak        a live stream whose client left keeps its seat of state
    swap        the states of two named sessions change places when both are stored at step SWAP_AT
    drop        one answer of a live stream is never sent: the one at step DROP_AT
    second-end  a live stream sends its terminal frame twice
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rfa.runtime.state.names import SessionName, StateScope
from rfa.service.engine.filter.stream import StreamJob
from rfa.service.process import child
from rfa.service.routes import filter_stream
from rfa.service.state.keeper import StateKeeper
from rfa.service.websocket import JsonSocket

SWAP_AT = 5
DROP_AT = 7


def plant_leak() -> None:
    release = StreamJob.release

    def forget(job: StreamJob) -> None:
        if not job.cancelled:
            release(job)

    StreamJob.release = forget  # type: ignore[assignment,method-assign]


def plant_swap() -> None:
    """Two sessions of one model are stored with each other's state: the first waits for the second."""
    save = StateKeeper.save
    held: dict[str, tuple[SessionName, bytes, int | None]] = {}

    async def mix(
        keeper: StateKeeper,
        scope: StateScope,
        payload: bytes,
        step: int,
        *,
        session: SessionName | None,
        expected: int | None,
    ) -> str:
        if session is not None and step == SWAP_AT:
            if scope.model in held:
                other, theirs, _ = held.pop(scope.model)
                await save(keeper, scope, payload, step, session=other, expected=SWAP_AT)
                payload = theirs
            else:
                held[scope.model] = (session, payload, expected)
        return await save(keeper, scope, payload, step, session=session, expected=expected)

    StateKeeper.save = mix  # type: ignore[assignment,method-assign]


def plant_drop() -> None:
    document = filter_stream._document

    async def with_index(reply: Any, stream: Any) -> Any:
        return None if reply.step.index == DROP_AT else await document(reply, stream)

    write = JsonSocket.write

    async def swallow(socket: JsonSocket, documents: Sequence[Any]) -> None:
        await write(socket, [document for document in documents if document is not None])

    filter_stream._document = with_index
    JsonSocket.write = swallow  # type: ignore[assignment,method-assign]


def plant_second_end() -> None:
    end = JsonSocket.end

    async def twice(socket: JsonSocket, document: Any, code: int) -> None:
        await socket.write([document])
        await end(socket, document, code)

    JsonSocket.end = twice  # type: ignore[assignment,method-assign]


PLANTS: Mapping[str, Callable[[], None]] = {
    "none": lambda: None,
    "leak": plant_leak,
    "swap": plant_swap,
    "drop": plant_drop,
    "second-end": plant_second_end,
}

if __name__ == "__main__":
    PLANTS[os.environ["FAULT"]]()
    child.main()
