"""The kernels that serving a language model on a GPU launches, compiled for a GPU that need not be here.

A process of its own compiles, an architecture each:

    python -m rfa.export.kernel_compile < {"config": …, "architecture": 90} > {"kernels": […], "files": {…}}
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import rfa
from rfa.export.documents import canonical_json
from rfa.export.kernel_recording import are_launched, common, serving_launches
from rfa.export.stored_kernels import ENTRY, KERNELS_FILE, MAX_KERNELS, TARGET
from rfa.model.config import LanguageModelConfig
from rfa.model.kernel_launches import THREADS_OF_A_WARP, KernelLaunch, source_hash

# Those whose kernels the emulator executes: what `rfa verify` cannot check is not stored.
ARCHITECTURES = {f"sm_{number}": number for number in (80, 86, 89, 90)}
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
CUDA = re.compile(r"release (\d+\.\d+)")
# What compiles differs from run to run by nothing, and names no folder of this machine.
ENVIRONMENT = {"TRITON_DISABLE_LINE_INFO": "1"}


class KernelCompilationError(RuntimeError):
    """A kernel that cannot be stored, or that the compiler refuses."""


def parse_architectures(text: str) -> tuple[int, ...]:
    """`sm_80,sm_90` as (80, 90).

    Raises:
        ValueError: it is something else.
    """
    names = [part.strip() for part in text.split(",")]
    if not ARCHITECTURES.keys() >= set(names) or len(set(names)) != len(names):
        raise ValueError(f"--gpu takes architectures among {', '.join(ARCHITECTURES)}, each once, such as sm_80,sm_90")
    return tuple(sorted(ARCHITECTURES[name] for name in names))


def kernel_files(config: LanguageModelConfig, architectures: Sequence[int]) -> dict[str, bytes]:
    """The files of a bundle with the kernels of a model: kernels.json, and machine code and PTX of each.

    Raises:
        KernelCompilationError: no kernel runs the model, or the compiler refuses one; its last lines say why.
    """
    if not are_launched(config, min(architectures)):
        raise KernelCompilationError("no kernel of a GPU runs this model")
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        parts = list(pool.map(lambda architecture: _compile_apart(config, architecture), architectures))
    entries = [entry for part in parts for entry in part["kernels"]]
    if len(entries) > MAX_KERNELS:
        raise KernelCompilationError(f"{len(entries)} kernels, a bundle has at most {MAX_KERNELS}: for fewer GPUs?")
    files = {name: base64.b64decode(text) for part in parts for name, text in part["files"].items()}
    return {KERNELS_FILE: canonical_json({"kernels": entries}), **files}


def _compile_apart(config: LanguageModelConfig, architecture: int) -> dict[str, Any]:
    """Not in Triton's interpreter, whatever this process was started with."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | ENVIRONMENT
    request = json.dumps({"config": config.to_dict(), "architecture": architecture})
    command = [sys.executable, "-m", "rfa.export.kernel_compile"]
    home = Path(str(rfa.__file__)).parent.parent
    done = subprocess.run(
        command, input=request, cwd=home, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise KernelCompilationError(f"compiling kernels for sm_{architecture} failed: {reason[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compile_launch(launch: KernelLaunch, architecture: int) -> Any:
    """What Triton makes of it: `asm` has "cubin" and "ptx"."""
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
    """Registers of a thread and bytes of its stack, of a function in machine code.

    Raises:
        ValueError: there is no such function.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        report = tool("cuobjdump", "-res-usage", str(path))
    _, _, after = report.partition(f"Function {kernel}:")
    found = RESOURCES.search(after)
    if found is None:
        raise ValueError(f"cuobjdump reports no resources of {kernel}: {report[:200]!r}")
    return int(found[1]), int(found[2])


def tool(name: str, *arguments: str) -> str:
    """Output of a binary tool that comes with Triton."""
    from triton import knobs

    path = getattr(knobs.nvidia, name).path
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def stored(launch: KernelLaunch, architecture: int, file: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A kernel compiled: its entry in kernels.json, and its files.

    Raises:
        KernelCompilationError: it needs what a plain launch does not give it.
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
        raise KernelCompilationError(f"{name} for sm_{architecture} needs {what}, which stored kernels go without")
    target, entry = TARGET.search(ptx), ENTRY.search(ptx)
    assert target is not None and entry is not None
    given = sum(kind != "constexpr" for kind in launch.signature.values())
    registers, stack_bytes = resources(cubin, name)
    assembler = CUDA.search(tool("ptxas", "--version"))
    assert assembler is not None
    document = {
        **asked_for(launch),
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


def asked_for(launch: KernelLaunch) -> dict[str, Any]:
    """That part of the entry by which `rfa.export.stored_kernels.StoredKernel.fits` knows launches."""
    parameters = [_parameter(launch, index, key) for index, key in enumerate(launch.signature)]
    return {"name": launch.call.name, "parameters": parameters, "options": dict(launch.call.options)}


def _parameter(launch: KernelLaunch, index: int, name: str) -> dict[str, Any]:
    """As `rfa.export.stored_kernels.Parameter` reads it."""
    return {
        "name": name,
        "type": launch.signature[name],
        "value": launch.constexprs.get((index,)),
        "is_aligned": bool(launch.attributes.get((index,))),
    }


def main() -> None:
    """Compile for one architecture; see above."""
    request = json.load(sys.stdin)
    architecture = int(request["architecture"])
    config = LanguageModelConfig.from_dict(request["config"])
    entries, files = [], {}
    numbers: Counter[str] = Counter()
    for launch in common(serving_launches(config, architecture)):
        stem = launch.call.name.strip("_")
        numbers[stem] += 1
        entry, made = stored(launch, architecture, f"{stem}-{numbers[stem]}.sm_{architecture}")
        entries.append(entry)
        files.update({name: base64.b64encode(data).decode() for name, data in made.items()})
    sys.stdout.write(json.dumps({"kernels": entries, "files": files}) + "\n")


if __name__ == "__main__":
    main()
