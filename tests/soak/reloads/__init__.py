"""Reloads under load: `python -m tests.soak.reloads --rounds 1000`.

A real server of two processes answers one-shot requests, keep-alive connections, state tokens and live streams while
its bundle is exchanged for another version and back, every third round for a broken one, and now and then a process is
killed or stopped in the middle. Which version answered is told by the numbers themselves.
"""
