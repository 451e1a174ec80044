#!/bin/sh
# Start the server, or `rfa watch` if the first argument is watch, with the CPU kernels that the image build compiled.
#
# numba needs a writable cache directory, and the root of an image is often read-only, so the kernels are copied. numba ignores
# kernels for another processor target (rfa/runtime/processor.py); the server then compiles its own.
set -eu
export NUMBA_CACHE_DIR="$HOME/kernels"
if mkdir -p "$NUMBA_CACHE_DIR"; then cp -R /opt/rfa/kernels/. "$NUMBA_CACHE_DIR" || true; fi
if [ "${1:-}" = watch ]; then exec rfa "$@"; fi
exec rfa serve --host 0.0.0.0 "$@"
