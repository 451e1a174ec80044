"""A file that somebody sent is read in a process of its own.

What it unpacks to is not known before it is unpacked, and the readers of Parquet, archives and workbooks are large. So
the kernel bounds that process: its memory, its processor time, its open files, the size of written files (none). A file
that asks for more costs that process, and nothing of the others. The other side is `child.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from typing import Any, Final

import orjson

from rfa.service.child_environment import child_environment
from rfa.service.errors import InvalidRequest, PayloadTooLarge
from rfa.service.reading.child import ANSWERED, REFUSED

PROGRAM: Final = (sys.executable, "-P", "-m", "rfa.service.reading.child")
# The interpreter and its libraries, and what the file may take beside them.
BASE_BYTES: Final = 64 << 20
FILE_BYTES: Final = 64 << 20
SECONDS: Final = 10.0
# By the clock, the start of the process included.
PATIENCE: Final = 60.0
# Keys and what else an operator sets are nothing to a file.
KEPT_VARIABLES: Final = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TZDIR")
# Arrow's own allocator reserves more than it uses, which would count.
PLAIN_ALLOCATOR: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}


async def read_apart(content: bytes, options: dict[str, Any]) -> bytes:
    """The series of a file, as the JSON of `ReadReply`; cancelling ends the process.

    Args:
        options: of the loader, and `most_numbers` that are taken.

    Raises:
        InvalidRequest: what the loader says of the file, which may tell a cell or a column of it.
        PayloadTooLarge: it takes more memory or time than there is for one.
    """
    asked = json.dumps({**options, "memory_bytes": FILE_BYTES, "seconds": SECONDS})
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="rfa-read-") as empty:
        process = await asyncio.create_subprocess_exec(
            *PROGRAM,
            asked,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=empty,
            env=child_environment({**environment, **PLAIN_ALLOCATOR}),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                answer, _ = await process.communicate(content)
        except TimeoutError:
            answer = b""
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
    kind, document = answer[:1], answer[1:]
    if kind == ANSWERED:
        return document
    if kind == REFUSED:
        raise InvalidRequest(_sentence(orjson.loads(document)), code="unreadable_file")
    raise PayloadTooLarge("The file takes more memory or time to read than there is for one: send a part of it.")


def _sentence(message: str) -> str:
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "!", "?")) else ".")
