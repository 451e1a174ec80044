"""HEALTHCHECK of the image: exit with 0 if the server of this container is ready, otherwise with 1.

It uses the HTTP client of Python, so the image needs no curl. It reads `RFA_HEALTH_PORT` and `RFA_PORT`.
"""

from __future__ import annotations

import http.client
import os
import sys

TIMEOUT_SECONDS = 4


def is_ready(port: int) -> bool:
    """Return whether `GET /ready` returns 200. If nothing listens, or there is no reply in time, return False."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if is_ready(int(os.environ.get("RFA_HEALTH_PORT") or os.environ.get("RFA_PORT", "8000"))) else 1)
