"""The server as a whole: one address, and the processes behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from service.process.address import reserve
from service.process.handover import with_state_key
from service.process.supervisor import PROGRAM, Supervisor
from service.settings import Settings


def serve(settings: Settings, program: Sequence[str] = PROGRAM) -> None:
    """Serve until SIGINT or SIGTERM.

    Running requests get `shutdown_grace_seconds` to end.

    Args:
        program: command that starts a server process; tests pass one with hand-made models.

    Raises:
        StartError: a bundle or a setting is refused, with the reason; nothing was served.
        OSError: the address cannot be used.
        SystemExit: the end was not orderly: a second signal, or a process that had to be killed.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    holder, address = reserve(settings.host, settings.port)
    with holder:
        settings = with_state_key(settings.model_copy(update={"port": address.port}))
        code = asyncio.run(_supervise(settings, program))
    if code:
        raise SystemExit(code)


async def _supervise(settings: Settings, program: Sequence[str]) -> int:
    return await Supervisor(settings, program).run()
