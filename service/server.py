"""The server as a whole: one address, and the processes behind it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from service.access.keys import check_exposure
from service.access.logs import configure_logging
from service.process.address import reserve
from service.process.handover import with_state_key
from service.process.supervisor import PROGRAM, Supervisor
from service.settings import Settings, check_names


def serve(settings: Settings, program: Sequence[str] = PROGRAM) -> None:
    """Serve until SIGINT or SIGTERM.

    Running requests get `shutdown_grace_seconds` to end.

    Args:
        program: command that starts a server process; tests pass one with hand-made models.

    Raises:
        ConfigurationError: the settings would serve anyone, their keys are unusable, or one is misspelt.
        StartError: a bundle or a setting is refused, with the reason; nothing was served.
        OSError: the address cannot be used.
        SystemExit: the end was not orderly: a second signal, or a process that had to be killed.
    """
    check_names(os.environ)
    check_exposure(settings)
    configure_logging(settings)
    holder, address = reserve(settings.host, settings.port)
    with holder:
        settings = with_state_key(settings.model_copy(update={"port": address.port}))
        code = asyncio.run(_supervise(settings, program))
    if code:
        raise SystemExit(code)


async def _supervise(settings: Settings, program: Sequence[str]) -> int:
    return await Supervisor(settings, program).run()
