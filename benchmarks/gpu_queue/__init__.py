"""Jobs that need a GPU, run by one command on a machine that is available for minutes."""
