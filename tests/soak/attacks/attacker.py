"""One attack in a process of its own: a line "ready", then the attack at the word, then what was seen as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress

from tests.soak.attacks.catalogue import all_attacks
from tests.soak.attacks.stage import Over, Stage

# What drivers of many connections need less of: a thread each.
STACK_BYTES = 262_144


def main() -> None:
    """Do what the command line says: NAME, PORT, SECONDS."""
    name, port, seconds = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this one ends it
    threading.stack_size(STACK_BYTES)
    stage = Stage(int(port), float(seconds))
    with suppress(Over):
        all_attacks()[name].drive(stage)
    print(json.dumps(stage.to_document()), flush=True)
    os._exit(0)  # threads that still wait for an answer are of no use now


if __name__ == "__main__":
    main()
