"""Run one attack in a process: print "ready", attack when told to, and print the results as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress

from tests.soak.attacks.catalogue import all_attacks
from tests.soak.attacks.stage import Stage
from tests.soak.attacks.wire import Over

# A smaller stack, because some attacks use a thread per connection.
STACK_BYTES = 262_144


def main() -> None:
    """Run the command line NAME, PORT, SECONDS."""
    name, port, seconds = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    threading.stack_size(STACK_BYTES)
    stage = Stage(int(port), float(seconds))
    with suppress(Over):
        all_attacks()[name].drive(stage)
    print(json.dumps(stage.to_document()), flush=True)
    os._exit(0)  # do not wait for threads that wait for an answer


if __name__ == "__main__":
    main()
