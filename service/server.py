"""The server as a whole: one address, and the processes behind it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from functools import partial

from rfa.service.access.keys import check_exposure
from rfa.service.access.logs import configure_logging
from rfa.service.process.address import reserve
from rfa.service.process.reloading import CheckBundles
from rfa.service.process.settings_json import with_state_key
from rfa.service.process.supervisor import PROGRAM, Supervisor
from rfa.service.settings import Settings, check_names
from rfa.service.vetting.trust import trusted_keys, with_trusted_keys
from rfa.service.vetting.vetting import vet as check_bundles


def serve(settings: Settings, program: Sequence[str] = PROGRAM, check: CheckBundles | None = None) -> None:
    """Serve until SIGINT or SIGTERM.

    Running requests get `shutdown_grace_seconds` to end.

    Args:
        program: command that starts a server process; tests pass one with hand-made models.
        check: checks bundles before any process loads them; tests with small models pass one that does nothing.

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
        settings = with_trusted_keys(with_state_key(settings.model_copy(update={"port": address.port})))
        keys = [str(key) for key in trusted_keys(settings)]
        check = check or partial(check_bundles, trusted_keys=keys)
        code = asyncio.run(_supervise(settings, holder, program, check))
    if code:
        raise SystemExit(code)


async def _supervise(settings: Settings, holder: socket.socket, program: Sequence[str], check: CheckBundles) -> int:
    return await Supervisor(settings, holder, program, check).run()
