#!/bin/sh
# Prepare the environment of an image after the installation by pip: delete unnecessary files and compile the kernels.
#
#   finish.sh ENVIRONMENT      writes kernels to NUMBA_CACHE_DIR
set -eu
environment=$1
# In the CPU image, this is a tenth of the size: the tests of packages, the downloads of the tokenizers library, and Arrow's
# protocol and headers. In the CUDA images, also files that are only needed to link other programs with CUDA.
find "$environment/lib" -depth -type d -name tests -exec rm -r {} +
rm -r "$environment"/lib/python3*/site-packages/hf_xet* "$environment"/lib/python3*/site-packages/huggingface_hub* \
    "$environment"/lib/python3*/site-packages/pyarrow/*flight* \
    "$environment"/lib/python3*/site-packages/pyarrow/include
find "$environment/lib" -path '*/site-packages/nvidia/*' \( -name '*.a' -o -name '*.h' -o -name '*.hpp' -o -name '*.cuh' \) -delete
# numba finds a kernel by the modification time of its source file, which a layer stores in whole seconds.
find "$environment/lib" -path '*/site-packages/rfa/*.py' -exec sh -c \
    'for file do touch -d "@$(stat -c %Y "$file")" "$file"; done' sh {} +
mkdir -p "$NUMBA_CACHE_DIR"
cd / # outside a checkout, whose code would be compiled instead of the installed package
PYTHONDONTWRITEBYTECODE=1 "$environment/bin/rfa" compile
