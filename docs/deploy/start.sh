#!/bin/sh
# What every image runs: the server, with the CPU's kernels that were compiled when the image was built.
#
# numba keeps kernels in a folder that it can write to, and an image's root is often read-only: they are copied to
# where it can. A processor that they do not fit compiles its own at each start.
set -eu
. /srv/rfa/processor.sh
export NUMBA_CACHE_DIR="$HOME/kernels"
if [ "$KERNELS_FIT" = no ]; then
    unset NUMBA_CPU_NAME NUMBA_CPU_FEATURES
elif mkdir -p "$NUMBA_CACHE_DIR"; then # without a place for them every process compiles for itself
    cp -R /opt/rfa/kernels/. "$NUMBA_CACHE_DIR" || true
fi
exec rfa serve --host 0.0.0.0 "$@"
