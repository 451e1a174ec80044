"""Open files of a server process: every connection is one, and shells and service managers begin with 1,024."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger("rfa.server")
# For bundles, logs, the supervisor, the metrics of siblings, and connections to Redis.
BESIDE_CONNECTIONS = 256


def allow_open_files(connections: int) -> None:
    """Raise the soft limit to what so many connections need; where the hard limit is lower, to that, and say so.

    Beyond the limit the kernel's connections are reset without an answer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + BESIDE_CONNECTIONS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ValueError, OSError):  # some systems have a limit that they do not tell of
        limit = soft
    if limit < wanted:
        logger.warning(
            "this process may open %d files; max_connections %d needs %d (ulimit -n)", limit, connections, wanted
        )
