"""Load a language bundle on a CPU. A bundle runs in compiled code if compiled code supports it, and otherwise on ONNX
Runtime."""

from __future__ import annotations

import logging

from rfa.runtime.bundle.bundle import Bundle, check_golden
from rfa.runtime.choices import RuntimeName
from rfa.runtime.errors import UnsupportedError
from rfa.runtime.text.language import Language, LanguageRuntime

logger = logging.getLogger("rfa.engine")


def load_on_cpu(bundle: Bundle, choice: RuntimeName, streams: int, max_rows: int) -> Language:
    """Load a language bundle, compare it with its golden outputs, and return the runtime.

    For compiled code, only the graph of attention mode is loaded, because the other graphs take 80 MB.

    Args:
        bundle: Bundle of kind "lm".
        choice: Name of the runtime. "auto" selects compiled code if it supports the bundle. Otherwise, it selects ONNX
            Runtime and logs the reason.
        streams: Maximum number of recurrent contexts that exist at the same time.
        max_rows: Maximum number of rows of a step.

    Raises:
        UnsupportedError: If `choice` is "compiled" and compiled code does not support the bundle.
        BundleError: If golden outputs differ, or constants do not match.
    """
    reason = None if choice == "onnx" else compiled_refusal(bundle)
    if reason is not None and choice == "compiled":
        raise UnsupportedError(f"RFA_TEXT_RUNTIME=compiled does not support bundle {bundle.name!r}: {reason}")
    if reason is not None:
        logger.info("bundle %r uses ONNX Runtime instead of the compiled runtime: %s", bundle.name, reason)
    if reason is not None or choice == "onnx":
        graphs = LanguageRuntime(bundle, streams=streams, max_rows=max_rows)  # keeps the sessions that are checked
        graphs.golden_values = check_golden(bundle)
        return graphs
    from rfa.runtime.text.compiled_language import CompiledLanguageRuntime, reproduce_golden

    runtime = CompiledLanguageRuntime(bundle, streams=streams)
    runtime.golden_values = reproduce_golden(bundle, runtime)
    return runtime


def compiled_refusal(bundle: Bundle) -> str | None:
    """Return the reason why this process cannot run a bundle in compiled code, or None if it can."""
    try:
        from rfa.runtime.text.compiled_language import refusal
    except RuntimeError as error:  # there is no writable directory for the kernel cache
        return str(error)
    return refusal(bundle)
