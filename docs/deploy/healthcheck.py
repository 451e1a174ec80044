"""Exit with 0 when the server of this container is ready, with 1 when it is not: the image's HEALTHCHECK.

Python's own HTTP client, so that the image needs no curl; `RFA_HEALTH_PORT` and `RFA_PORT` as the server reads them.
"""

from __future__ import annotations

import http.client
import os
import sys

TIMEOUT_SECONDS = 4


def is_ready(port: int) -> bool:
    """Whether `GET /ready` answers 200; false also when nothing listens or no answer comes in time."""
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
