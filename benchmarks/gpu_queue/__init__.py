"""What waits for a GPU, run by one command where one is lent for minutes: `python -m rfa.benchmarks.gpu_queue`."""
