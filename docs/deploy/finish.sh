#!/bin/sh
# What an image does to the environment that pip has filled: it leaves out what serves nobody and compiles the kernels.
#
#   finish.sh ENVIRONMENT      kernels go to NUMBA_CACHE_DIR
set -eu
environment=$1
# Of the CPU image that is a tenth: the packages' own tests, what the tokenizers would download models with, Arrow's
# protocol and headers; of torch's CUDA libraries what others would be linked with.
find "$environment/lib" -depth -type d -name tests -exec rm -r {} +
rm -r "$environment"/lib/python3*/site-packages/hf_xet* "$environment"/lib/python3*/site-packages/huggingface_hub* \
    "$environment"/lib/python3*/site-packages/pyarrow/*flight* \
    "$environment"/lib/python3*/site-packages/pyarrow/include
find "$environment/lib" -path '*/site-packages/nvidia/*' \( -name '*.a' -o -name '*.h' -o -name '*.hpp' -o -name '*.cuh' \) -delete
# A kernel is found again by its source file's time, of which a layer keeps whole seconds.
find "$environment/lib" -path '*/site-packages/rfa/*.py' -exec sh -c \
    'for file do touch -d "@$(stat -c %Y "$file")" "$file"; done' sh {} +
mkdir -p "$NUMBA_CACHE_DIR"
cd / # not in a checkout, whose code would be compiled in the place of what is installed
PYTHONDONTWRITEBYTECODE=1 "$environment/bin/rfa" compile
