"""Processes of the server: a supervisor, and identical server processes that share a port. The supervisor starts and
restarts them."""
