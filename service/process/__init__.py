"""The processes behind one port: a supervisor, and equal server processes that it starts and restarts."""
