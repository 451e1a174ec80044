"""Compile the GPU kernels that serve a language model. This does not require a GPU.

Each architecture is compiled in a subprocess:

    python -m rfa.export.kernel_compile '{"config": …, "architecture": 90}'

The subprocess prints the number of kernels on the first line, and then one line of JSON `[entry, files]` per kernel.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

from tqdm import tqdm

import rfa
from rfa.export.kernel_recording import launches_kernels, merge_launches, serving_launches
from rfa.model.kernel_launches import THREADS_OF_A_WARP, KernelLaunch, source_hash
from rfa.runtime.bundle.documents import canonical_json
from rfa.runtime.bundle.stored_kernels import ENTRY, KERNELS_FILE, MAX_KERNELS_OF_A_GPU, TARGET
from rfa.runtime.text.config import LanguageModelConfig

# Architectures whose kernels the emulator of the tests can execute.
ARCHITECTURES = {f"sm_{number}": number for number in (80, 86, 89, 90)}
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
CUDA = re.compile(r"release (\d+\.\d+)")
WORKER = (sys.executable, "-m", "rfa.export.kernel_compile")
# Without line information, the files are reproducible and contain no local paths.
ENVIRONMENT = {"TRITON_DISABLE_LINE_INFO": "1"}


class KernelCompilationError(RuntimeError):
    """Raised when a kernel cannot be stored or does not compile."""


def parse_architectures(text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of GPU architectures. The text `sm_80,sm_90` results in (80, 90).

    Raises:
        ValueError: If an architecture is unknown or occurs twice.
    """
    names = [part.strip() for part in text.split(",")]
    if not ARCHITECTURES.keys() >= set(names) or len(set(names)) != len(names):
        raise ValueError(
            f"--gpu must be a comma-separated list of distinct architectures from {', '.join(ARCHITECTURES)}, for "
            f"example sm_80,sm_90; got {text!r}"
        )
    return tuple(sorted(ARCHITECTURES[name] for name in names))


def kernel_files(config: LanguageModelConfig, architectures: Sequence[int]) -> dict[str, bytes]:
    """Compile the GPU kernels of a model.

    Returns:
        Mapping from file names to contents: kernels.json, and the machine code and the PTX of each kernel.

    Raises:
        KernelCompilationError: If no kernel supports the model, there are too many kernels, or a kernel does not
            compile.
    """
    if not launches_kernels(config, min(architectures)):
        raise KernelCompilationError("no GPU kernel supports this model; leave out --gpu")
    with _Bar(len(architectures)) as bar, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        parts = pool.map(lambda architecture: list(_compile_in_subprocess(config, architecture, bar)), architectures)
        made = [kernel for part in parts for kernel in part]
    files = {name: base64.b64decode(text) for _, texts in made for name, text in texts.items()}
    return {KERNELS_FILE: canonical_json({"kernels": [entry for entry, _ in made]}), **files}


class _Bar(tqdm):
    """Progress bar for the kernels of all architectures. The number of kernels of an architecture is unknown until its
    subprocess reports it. Until then, the mean of the known numbers is used."""

    def __init__(self, architectures: int) -> None:
        super().__init__(desc="compile", unit="kernel", leave=False)
        self.architectures, self.counts = architectures, list[int]()

    def expect(self, count: int) -> None:
        self.counts.append(count)
        self.total = round(self.architectures * mean(self.counts))
        self.refresh()


def _compile_in_subprocess(config: LanguageModelConfig, architecture: int, bar: _Bar) -> Iterator[list[Any]]:
    """Compile the kernels in a subprocess without TRITON_INTERPRET, and yield the entry and files of each kernel."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | ENVIRONMENT
    request = json.dumps({"config": config.to_dict(), "architecture": architecture})
    home = Path(str(rfa.__file__)).parent.parent
    # Errors go to a file, because a pipe that is not read would block the subprocess.
    with tempfile.TemporaryFile("w+") as complaints:
        with subprocess.Popen(
            [*WORKER, request], cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=complaints, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            count = int(process.stdout.readline() or 0)
            if count > MAX_KERNELS_OF_A_GPU:
                process.kill()
                raise KernelCompilationError(
                    f"the model needs {count} kernels for sm_{architecture}, but a bundle can contain at most "
                    f"{MAX_KERNELS_OF_A_GPU} for each GPU"
                )
            bar.expect(count)
            for line in process.stdout:
                yield json.loads(line)
                bar.update()
        complaints.seek(0)
        reason = (complaints.read().strip().splitlines() or ["no message"])[-1]
    if process.returncode != 0:
        raise KernelCompilationError(f"compiling kernels for sm_{architecture} failed: {reason[-500:]}")


def compile_launch(launch: KernelLaunch, architecture: int) -> Any:
    """Compile the kernel of a launch. The attribute `asm` of the result contains "cubin" and "ptx"."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=launch.function,
        signature=dict(launch.signature),
        constexprs=dict(launch.constexprs),
        attrs=dict(launch.attributes),
    )
    target = GPUTarget("cuda", architecture, THREADS_OF_A_WARP)
    return triton.compile(source, target=target, options=dict(launch.options))


def resources(cubin: bytes, kernel: str) -> tuple[int, int]:
    """Return the number of registers and the number of stack bytes that each thread of a kernel uses.

    Raises:
        ValueError: If cuobjdump does not report them.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        report = tool("cuobjdump", "-res-usage", str(path))
    _, _, after = report.partition(f"Function {kernel}:")
    found = RESOURCES.search(after)
    if found is None:
        raise ValueError(f"cuobjdump reports no resource usage for {kernel}: {report[:200]!r}")
    return int(found[1]), int(found[2])


def tool(name: str, *arguments: str) -> str:
    """Run one of the binary tools that are part of Triton, and return its output."""
    from triton import knobs

    path = getattr(knobs.nvidia, name).path
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def compiled_kernel(launch: KernelLaunch, architecture: int, file: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Compile the kernel of a launch, and return its entry and its files.

    Args:
        launch: Launch for which the kernel is compiled.
        architecture: GPU architecture, such as 90.
        file: Name of the kernel's files without `.cubin` and `.ptx`.

    Returns:
        Entry of the kernel in kernels.json, and a mapping from names to contents of its files.

    Raises:
        KernelCompilationError: If the kernel needs a feature that stored kernels do not support, such as clusters.
    """
    import triton

    name = launch.call.name
    compiled = compile_launch(launch, architecture)
    cubin, ptx = bytes(compiled.asm["cubin"]), str(compiled.asm["ptx"])
    metadata = compiled.metadata
    needs = {
        "tensor descriptors": any("tensordesc" in kind for kind in launch.signature.values()),
        "clusters": metadata.num_ctas != 1,
        "scratch memory": metadata.global_scratch_size or metadata.profile_scratch_size,
        "a cooperative or dependent launch": metadata.launch_cooperative_grid or metadata.launch_pdl,
    }
    for what in (what for what, is_needed in needs.items() if is_needed):
        raise KernelCompilationError(f"{name} for sm_{architecture} needs {what}, which stored kernels do not support")
    target, entry = TARGET.search(ptx), ENTRY.search(ptx)
    assert target is not None and entry is not None
    given = sum(kind != "constexpr" for kind in launch.signature.values())
    registers, stack_bytes = resources(cubin, name)
    assembler = CUDA.search(tool("ptxas", "--version"))
    assert assembler is not None
    document = {
        **launch_fields(launch),
        "file": file,
        "architecture": f"sm_{architecture}",
        "target": target[1],
        "source": source_hash(launch.function),
        "scratch": entry[2].count(".param") - given,
        "warps": int(metadata.num_warps),
        "registers": registers,
        "stack_bytes": stack_bytes,
        "shared_bytes": int(metadata.shared),
        "triton": triton.__version__,
        "cuda": assembler[1],
    }
    return document, {f"{file}.cubin": cubin, f"{file}.ptx": ptx.encode("ascii")}


def launch_fields(launch: KernelLaunch) -> dict[str, Any]:
    """Return the fields of a kernel's entry that `StoredKernel.fits` compares with launches."""
    parameters = [_parameter(launch, index, key) for index, key in enumerate(launch.signature)]
    return {"name": launch.call.name, "parameters": parameters, "options": dict(launch.call.options)}


def _parameter(launch: KernelLaunch, index: int, name: str) -> dict[str, Any]:
    """Return the entry of a parameter, as described in `rfa.runtime.bundle.stored_kernels.Parameter`."""
    return {
        "name": name,
        "type": launch.signature[name],
        "value": launch.constexprs.get((index,)),
        "is_aligned": bool(launch.attributes.get((index,))),
    }


def main() -> None:
    """Compile the kernels for one architecture, as described in the module docstring."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Triton prints the errors of ptxas

    def write(answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    request = json.loads(sys.argv[1])
    architecture = int(request["architecture"])
    launches = merge_launches(serving_launches(LanguageModelConfig.from_dict(request["config"]), architecture))
    write(len(launches))
    numbers: Counter[str] = Counter()
    for launch in launches:
        stem = launch.call.name.strip("_")
        numbers[stem] += 1
        entry, made = compiled_kernel(launch, architecture, f"{stem}-{numbers[stem]}.sm_{architecture}")
        files = {name: base64.b64encode(data).decode() for name, data in made.items()}
        write([entry, files])


if __name__ == "__main__":
    main()
