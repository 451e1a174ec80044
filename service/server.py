"""Run the server on one address, with one or more server processes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from functools import partial

from rfa.service.access.keys import check_exposure
from rfa.service.access.logs import configure_logging
from rfa.service.bundle_checks.subprocess_check import check_bundles
from rfa.service.bundle_checks.trusted_keys import trusted_keys, with_trusted_keys
from rfa.service.process.address import reserve
from rfa.service.process.reloading import CheckBundles
from rfa.service.process.settings_json import with_state_key
from rfa.service.process.supervisor import PROGRAM, Supervisor
from rfa.service.settings import Settings, check_names


def serve(settings: Settings, program: Sequence[str] = PROGRAM, check: CheckBundles | None = None) -> None:
    """Run the server until SIGINT or SIGTERM.

    Args:
        settings: Settings of the server.
        program: Command that starts a server process.
        check: Function that checks bundles before a process loads them.

    Raises:
        ConfigurationError: If other machines can reach the server without an API key, a key is invalid, or a setting is
            misspelt.
        StartError: If a bundle or a setting is rejected, or processes exit repeatedly.
        OSError: If the address cannot be used.
        SystemExit: If a second stop signal is received, or a process fails while it stops.
    """
    check_names(os.environ)
    check_exposure(settings)
    configure_logging(settings)
    holder, address = reserve(settings.server.host, settings.server.port)
    with holder:
        settings = with_trusted_keys(with_state_key(settings.replace(port=address.port)))
        keys = [str(key) for key in trusted_keys(settings.security)]
        check = check or partial(check_bundles, trusted_keys=keys)
        code = asyncio.run(_supervise(settings, holder, program, check))
    if code:
        raise SystemExit(code)


async def _supervise(settings: Settings, holder: socket.socket, program: Sequence[str], check: CheckBundles) -> int:
    return await Supervisor(settings, holder, program, check).run()
