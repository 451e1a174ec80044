"""Compiles the CPU kernels of the default bundles, in parallel with tests that need none."""

from __future__ import annotations

from rfa.cli.bundles import served_bundles
from rfa.service.precompile import compile_ahead, is_compiled
from rfa.service.settings import Settings

if __name__ == "__main__":
    settings = Settings(bundles=served_bundles())
    if not is_compiled(settings):
        compile_ahead(settings)
