"""A filter as the server has it, on its own."""

from __future__ import annotations

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.compiling import run_with_locks
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.golden import filter_tasks, open_filter


def load_filter(bundle: Bundle) -> FilterRuntime:
    """Ready to run, and held to the golden outputs of its bundle."""
    model = open_filter(bundle)
    for tasks in filter_tasks(bundle, model):
        run_with_locks(tasks)
    return model
