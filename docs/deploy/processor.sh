# Which processor the image's kernels are for: read where they are compiled and where they run.
#
# On x86 one with x86-64-v3 (2013 and later); KERNELS_FIT is yes where this processor has its instructions.
case "$(uname -m)" in
x86_64)
    NUMBA_CPU_NAME=x86-64-v3
    KERNELS_FIT=yes
    for flag in avx2 bmi1 bmi2 f16c fma abm movbe; do
        grep -qw "$flag" /proc/cpuinfo || KERNELS_FIT=no
    done
    ;;
*)
    NUMBA_CPU_NAME=generic
    KERNELS_FIT=yes
    ;;
esac
export NUMBA_CPU_NAME NUMBA_CPU_FEATURES=""
