"""Limit on the number of open files. Every connection is an open file, and the usual soft limit is 1,024."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger("rfa.server")
# Number of files other than connections: bundles, logs, the supervisor, metrics sockets and Redis.
OTHER_FILES = 256


def allow_open_files(connections: int) -> None:
    """Raise the soft limit for this number of connections, but not above the hard limit. Log a warning if that is too
    low.

    Beyond the limit, the kernel resets connections without a reply.
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
            "this process may open only %d files, but max_connections %d requires %d; increase the limit with "
            "ulimit -n, or lower max_connections",
            limit,
            connections,
            required,
        )
