"""A language bundle on a CPU: in compiled code where that can run it, else on ONNX Runtime."""

from __future__ import annotations

import logging

from rfa.runtime.bundle.bundle import Bundle, check_golden
from rfa.runtime.choices import RuntimeName
from rfa.runtime.errors import UnsupportedError
from rfa.runtime.text.language import Language, LanguageRuntime

logger = logging.getLogger("rfa.engine")


def load_on_cpu(bundle: Bundle, choice: RuntimeName, streams: int, max_rows: int) -> Language:
    """Load a language bundle and compare it to its golden outputs.

    For compiled code only the graph of the attention mode is loaded: the others take 80 MB.

    Args:
        choice: "auto" is compiled code if it can run the bundle, else ONNX Runtime, with the reason in the log.

    Raises:
        UnsupportedError: "compiled" cannot run the bundle.
        BundleError: golden outputs differ, or constants do not fit.
    """
    reason = None if choice == "onnx" else compiled_refusal(bundle)
    if reason is not None and choice == "compiled":
        raise UnsupportedError(f"RFA_TEXT_RUNTIME=compiled: bundle {bundle.name!r} cannot run on it: {reason}")
    if reason is not None:
        logger.info("bundle %r runs on ONNX Runtime, not in compiled code: %s", bundle.name, reason)
    if reason is not None or choice == "onnx":
        graphs = LanguageRuntime(bundle, streams=streams, max_rows=max_rows)  # holds the sessions that are checked
        graphs.golden_values = check_golden(bundle)
        return graphs
    from rfa.runtime.text.compiled_language import CompiledLanguageRuntime, reproduce_golden

    runtime = CompiledLanguageRuntime(bundle, streams=streams)
    runtime.golden_values = reproduce_golden(bundle, runtime)
    return runtime


def compiled_refusal(bundle: Bundle) -> str | None:
    """Why this bundle cannot run in compiled code here, or None."""
    try:
        from rfa.runtime.text.compiled_language import refusal
    except RuntimeError as error:  # no writable folder for the cache of kernels
        return str(error)
    return refusal(bundle)
