"""Compiled GPU kernels in a bundle: kernels.json, and the machine code (cubin) and PTX of each kernel.

A cubin must have the header of code for NVIDIA GPUs. Reading it executes nothing. Each entry states the architecture,
the hash of the kernel's source, and the type of every parameter. A parameter is a constant, or a number or address that
may have to be divisible by 16. A launch must match all parameters.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from rfa.runtime.bundle.documents import BundleError, Sha256, Strict, parse_json, read_document

KERNELS_FILE: Final = "kernels.json"
KERNEL_FILE: Final = re.compile(r"[a-z][a-z0-9_]{0,39}-[0-9]{1,2}\.sm_[0-9]{2,3}\.(?:cubin|ptx)")
# A model with both modes has 56 kernels of 4 MB in total. A bundle can contain kernels for six architectures.
MAX_KERNELS_OF_A_GPU: Final = 80
MAX_KERNELS: Final = 6 * MAX_KERNELS_OF_A_GPU
# kernels.json has about 3.6 kB per kernel.
MAX_KERNELS_BYTES: Final = MAX_KERNELS << 13
# Limits on the size of a kernel's machine code or PTX, and on the total size of all kernel files of a bundle.
MAX_CODE_BYTES: Final = 4 << 20
MAX_ALL_CODE_BYTES: Final = 256 << 20
# Alignment that kernels may assume for numbers and addresses.
DIVISOR: Final = 16
# Maximum shared memory of a CTA on any GPU.
MAX_SHARED_BYTES: Final = 227 << 10
ELF_HEADER: Final = struct.Struct("<4s5B7xHH")
ELF64_LITTLE_ENDIAN: Final = (b"\x7fELF", 2, 1, 1)
EM_CUDA: Final = 190
TARGET: Final = re.compile(r"^\.target (sm_[0-9]+a?)\s*$", re.MULTILINE)
# The pattern is bounded: parameters do not contain parentheses, and a block has at most 1,024 threads.
ENTRY: Final = re.compile(r"^\.visible \.entry (\w+)\(([^()]*)\)\s*\.reqntid (\d{1,4})\b", re.MULTILINE)

# Names of torch dtypes in the signature of a kernel.
NAMES: Final = {
    "torch.float64": "fp64", "torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16",
    "torch.int32": "i32", "torch.int64": "i64",
}  # fmt: skip
NUMBERS: Final = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}
TYPE: Final = r"^(?:constexpr|i32|i64|fp32|\*(?:fp64|fp32|fp16|bf16|i32|i64))$"

Architecture = Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}$")]
Version = Annotated[str, Field(pattern=r"^[0-9]{1,4}(?:\.[0-9]{1,4}){1,3}$")]
Count = Annotated[int, Field(ge=0, le=1 << 20)]


class Parameter(Strict):
    """A parameter of a kernel.

    Args:
        name: Name of the parameter.
        type: Triton type, such as "*fp32" for a pointer, or "constexpr".
        value: Value of a constant. Otherwise, None.
        is_aligned: Whether the value must be divisible by 16.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
    type: Annotated[str, Field(pattern=TYPE)]
    value: bool | int | float | Annotated[str, Field(max_length=64)] | None = None
    is_aligned: bool = False

    def takes(self, value: Any) -> bool:
        """Return whether a launch may pass the given value for the parameter."""
        if self.type == "constexpr":
            return type(value) is type(self.value) and bool(value == self.value)
        if self.type.startswith("*"):
            if not hasattr(value, "data_ptr") or NAMES.get(str(value.dtype)) != self.type[1:]:
                return False
            return not self.is_aligned or value.data_ptr() % DIVISOR == 0
        if self.type == "fp32":
            return isinstance(value, float)
        bits = int(self.type[1:])
        is_in_range = (
            isinstance(value, int) and not isinstance(value, bool) and -(1 << bits - 1) <= value < 1 << bits - 1
        )
        return is_in_range and (not self.is_aligned or value % DIVISOR == 0)


class KernelEntry(Strict):
    """Entry of a kernel for one architecture.

    Args:
        name: Name of the function in Python and in the machine code.
        file: Name of the files with machine code and PTX, without suffix.
        architecture: Lowest GPU architecture that supports the kernel.
        target: Target of the PTX. Code for sm_90a runs only on that architecture.
        source: Hash of the kernel's source. See `rfa.model.kernel_launches.source_hash`.
        options: Options of the launch.
        scratch: Number of null pointers after the arguments.
        warps: Number of warps per CTA.
        registers, stack_bytes: Registers and stack bytes of each thread.
        shared_bytes: Dynamic shared memory of each CTA in bytes.
        triton, cuda: Versions of the compiler and its assembler.
    """

    name: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,39}$")]
    file: Annotated[str, Field(max_length=99)]
    architecture: Architecture
    target: Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}a?$")]
    source: Sha256
    parameters: Annotated[list[Parameter], Field(min_length=1, max_length=128)]
    options: dict[Annotated[str, Field(max_length=32)], Count]
    scratch: Annotated[int, Field(ge=0, le=4)]
    warps: Annotated[int, Field(ge=1, le=32)]
    registers: Annotated[int, Field(ge=1, le=255)]
    stack_bytes: Count
    shared_bytes: Annotated[int, Field(ge=0, le=MAX_SHARED_BYTES)]
    triton: Version
    cuda: Version


class KernelDocument(Strict):
    """Content of kernels.json."""

    kernels: Annotated[list[KernelEntry], Field(min_length=1, max_length=MAX_KERNELS)]

    @model_validator(mode="after")
    def _has_each_once(self) -> Self:
        if len({entry.file for entry in self.kernels}) != len(self.kernels):
            raise ValueError("the file names of kernels must be unique")
        return self


@dataclass(frozen=True)
class StoredKernel:
    """A kernel with its machine code and PTX."""

    entry: KernelEntry
    cubin: bytes
    ptx: str

    def fits(self, name: str, values: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        """Return whether the kernel matches a launch.

        Args:
            name: Name of the launched function.
            values: Arguments by parameter name: tensors, numbers, constants or None.
            options: Numbers of warps and stages, if the launch sets them.
        """
        entry = self.entry
        if name != entry.name or dict(options) != entry.options or len(values) != len(entry.parameters):
            return False
        return all(
            parameter.name == key and parameter.takes(value)
            for parameter, (key, value) in zip(entry.parameters, values.items(), strict=True)
        )

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the C arguments of a matching launch in order. The arguments that are not constant come first,
        followed by null pointers."""
        packed: list[Any] = []
        for parameter in self.entry.parameters:
            value = values[parameter.name]
            if parameter.type.startswith("*"):
                packed.append(ctypes.c_uint64(value.data_ptr()))
            elif parameter.type != "constexpr":
                packed.append(NUMBERS[parameter.type](value))
        return [*packed, *(ctypes.c_uint64(0) for _ in range(self.entry.scratch))]

    def refusal(self, capability: tuple[int, int], driver: tuple[int, int]) -> str | None:
        """Return the reason why a GPU does not support the kernel, or None if the GPU supports it.

        Machine code runs on GPUs of the same major version with an equal or higher minor version. A target that ends in
        "a" runs on exactly that version. A driver loads code of every CUDA version with its major version.

        Args:
            capability: Compute capability of the GPU.
            driver: CUDA version of the driver.
        """
        entry = self.entry
        major, minor = divmod(int(entry.architecture.removeprefix("sm_")), 10)
        is_later = capability[0] == major and capability[1] > minor and not entry.target.endswith("a")
        if capability != (major, minor) and not is_later:
            return f"it was compiled for {entry.architecture}, but the GPU is sm_{capability[0]}{capability[1]}"
        if driver[0] < int(entry.cuda.split(".")[0]):
            return f"it was compiled with CUDA {entry.cuda}, but the driver supports only CUDA {driver[0]}.{driver[1]}"
        return None


def is_kernel_file(name: str) -> bool:
    """Return whether a file of a bundle is a kernel file."""
    return name == KERNELS_FILE or KERNEL_FILE.fullmatch(name) is not None


def largest_kernel_file(name: str) -> int:
    """Return the maximum size of a kernel file in bytes."""
    return MAX_KERNELS_BYTES if name == KERNELS_FILE else MAX_CODE_BYTES


def read_kernels(files: Mapping[str, bytes]) -> tuple[StoredKernel, ...]:
    """Read the kernels of a bundle from its kernel files.

    Raises:
        BundleError: If a file is missing, is not listed, or differs from kernels.json.
    """
    if not files:
        return ()
    if KERNELS_FILE not in files:
        raise BundleError(f"{min(files)}: a bundle with kernels must contain {KERNELS_FILE}")
    document = read_document(KernelDocument, parse_json(files[KERNELS_FILE], KERNELS_FILE), KERNELS_FILE)
    listed = {f"{entry.file}.{ending}" for entry in document.kernels for ending in ("cubin", "ptx")}
    for name in sorted(listed - files.keys()):
        raise BundleError(f"{KERNELS_FILE}: the document lists a missing file: {name!r}")
    for name in sorted(files.keys() - listed - {KERNELS_FILE}):
        raise BundleError(f"{name}: the file is not listed in {KERNELS_FILE}")
    return tuple(_read(entry, files) for entry in document.kernels)


def _read(entry: KernelEntry, files: Mapping[str, bytes]) -> StoredKernel:
    cubin, ptx = f"{entry.file}.cubin", f"{entry.file}.ptx"
    if not is_kernel_file(cubin) or not entry.file.endswith(f".{entry.architecture}"):
        raise BundleError(f"{KERNELS_FILE}: the file name of kernel {entry.name!r} must contain {entry.architecture}")
    _check_code(files[cubin], cubin)
    text = _check_text(files[ptx], ptx, entry)
    return StoredKernel(entry, files[cubin], text)


def _check_code(data: bytes, file: str) -> None:
    if len(data) < ELF_HEADER.size:
        raise BundleError(f"{file}: the file is too short to be machine code")
    *identity, _, _, _, machine = ELF_HEADER.unpack_from(data)
    if tuple(identity) != ELF64_LITTLE_ENDIAN or machine != EM_CUDA:
        raise BundleError(f"{file}: the file is not machine code for an NVIDIA GPU")


def _check_text(data: bytes, file: str, entry: KernelEntry) -> str:
    """Check that a file contains the PTX of the kernel that `entry` describes, and return its text."""
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise BundleError(f"{file}: PTX must be ASCII") from None
    targets, found = TARGET.findall(text), ENTRY.findall(text)
    if targets != [entry.target] or entry.target.removesuffix("a") != entry.architecture:
        raise BundleError(f"{file}: the file is not PTX for {entry.target}")
    if len(found) != 1 or found[0][0] != entry.name or int(found[0][2]) != 32 * entry.warps:
        raise BundleError(f"{file}: the file must contain PTX for kernel {entry.name!r} with {entry.warps} warps")
    expected = sum(parameter.type != "constexpr" for parameter in entry.parameters) + entry.scratch
    if found[0][1].count(".param") != expected:
        raise BundleError(f"{file}: the parameters of kernel {entry.name!r} do not match {KERNELS_FILE}")
    return text
