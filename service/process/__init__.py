"""The processes behind one port: a supervisor, and identical server processes that it starts and restarts."""
