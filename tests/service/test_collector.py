"""The garbage collector of a server process: full rounds seldom, and garbage in cycles is found all the same."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc, weakref
import rfa.service.process.child as child

class Node:
    pass

child._tune_garbage_collector()
before = gc.get_stats()[2]["collections"]
alive = [[] for _ in range(200_000)]
node = Node()
node.itself, gone = node, weakref.ref(node)
del node
alive += [[] for _ in range(50_000)]
print(gc.get_stats()[2]["collections"] - before, gone() is None, gc.get_freeze_count() > 10_000)
"""


def test_opening_many_streams_brings_no_full_round() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "0 True True\n"
