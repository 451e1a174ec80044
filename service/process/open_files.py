"""Increase the limit on the number of open files. Each connection is an open file, and the usual limit is 1,024."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger("rfa.server")
# Number of files other than connections: bundles, logs, the supervisor, metrics sockets and Redis.
OTHER_FILES = 256


def allow_open_files(connections: int) -> None:
    """Increase the soft limit on open files for the given number of connections, at most to the hard limit. If the hard
    limit is too low, log a warning.

    Beyond the limit, the process cannot accept connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = connections + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= required:
        return
    limit = required if hard == resource.RLIM_INFINITY else min(required, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ValueError, OSError):  # some systems have a limit that getrlimit does not report
        limit = soft
    if limit < required:
        logger.warning(
            "this process may open only %d files, but with RFA_MAX_CONNECTIONS=%d it needs %d; increase the limit with "
            "`ulimit -n`, or lower RFA_MAX_CONNECTIONS",
            limit,
            connections,
            required,
        )
