#!/bin/sh
# What the CPU image runs: the server, with the kernels that were compiled when the image was built.
#
# numba keeps kernels in a folder that it can write to, and an image's root is often read-only: they are copied to
# where it can. They are for any processor with x86-64-v3 (2013 and later); another compiles its own, once per start.
set -eu
export NUMBA_CACHE_DIR="$HOME/kernels"
runs_them() {
    for flag in avx2 bmi1 bmi2 f16c fma abm movbe; do
        grep -qw "$flag" /proc/cpuinfo || return 1
    done
}
if runs_them; then
    # Without a place for them every process compiles for itself.
    if mkdir -p "$NUMBA_CACHE_DIR"; then cp -R /opt/rfa/kernels/. "$NUMBA_CACHE_DIR" || true; fi
else
    unset NUMBA_CPU_NAME NUMBA_CPU_FEATURES
fi
exec rfa serve --host 0.0.0.0 "$@"
