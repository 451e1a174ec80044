"""Measurements that need a GPU, run by one command on a borrowed machine: `python -m rfa.benchmarks.gpu_queue`."""
