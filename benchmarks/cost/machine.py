"""Compiled kernels of one call of attention: instructions of each loop, and resources.

`python -m rfa.benchmarks.cost.machine CALL@ARCHITECTURE …` compiles without the interpreter and prints one JSON
document per line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rfa.benchmarks.kernels.compile_apart import compiled_apart
from rfa.benchmarks.kernels.sass import copies_ahead, guarded, loops_and_whole, matrix_loops


@dataclass(frozen=True)
class MachineLoop:
    """One iteration of a loop.

    Instructions and multiply-accumulates of a warp (0: unknown); iterations that a copy is requested ahead (None: no
    copies); and `around`, the code that runs only if the loop does.
    """

    opcodes: Mapping[str, int]
    around: Mapping[str, int]
    matrix_work: float
    ahead: float | None


@dataclass(frozen=True)
class Machine:
    """A compiled kernel: its loops with matrix products, the whole of it once, and its compile-time constants."""

    kernel: str
    architecture: int
    registers: int
    shared_bytes: int
    warps: int
    stages: int
    constants: Mapping[str, int]
    loops: Sequence[MachineLoop]
    whole: Mapping[str, int]


@dataclass(frozen=True)
class Call:
    """The kernels that a call launches, and the names of those that do not compile for this architecture."""

    kernels: Sequence[Machine]
    refused: Sequence[str] = ()


def machine(text: str, *, kernel: str, architecture: int, **resources: Any) -> Machine:
    """Create from the text of `nvdisasm -c`. resources: the other fields."""
    loops = [
        MachineLoop(
            dict(loop.opcodes),
            dict(Counter(guarded(text, loop).opcodes) - Counter(loop.opcodes)),
            loop.matrix_work,
            copies_ahead(text, loop),
        )
        for loop in matrix_loops(text)
    ]
    _, whole = loops_and_whole(text)
    return Machine(kernel=kernel, architecture=architecture, loops=loops, whole=dict(whole.opcodes), **resources)


def compiled(launch: Any, architecture: int) -> Machine:
    """Compile a recorded launch (`rfa.model.kernel_launches`) and disassemble it."""
    from rfa.export.kernel_compile import compile_launch, resources, tool

    made = compile_launch(launch, architecture)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(made.asm["cubin"])
        text = tool("nvdisasm", "-c", str(cubin))
    names = list(launch.signature)
    constants = {names[place[0]]: value for place, value in launch.constexprs.items() if isinstance(value, int)}
    return machine(
        text,
        kernel=launch.call.name,
        architecture=architecture,
        registers=resources(made.asm["cubin"], made.metadata.name)[0],
        shared_bytes=int(made.metadata.shared),
        warps=int(launch.options["num_warps"]),
        stages=int(launch.options["num_stages"]),
        constants=constants,
    )


def compile_calls(entries: Sequence[str], jobs: int | None = None) -> dict[str, Call]:
    """Return the launched kernels of each entry, such as "forward 64@90", compiled by this many processes."""
    found = compiled_apart(["rfa.benchmarks.cost.machine"], entries, jobs=jobs)
    return {
        entry: Call([_read(kernel) for kernel in call["kernels"]], call["refused"]) for entry, call in found.items()
    }


def _read(document: Mapping[str, Any]) -> Machine:
    return Machine(**{**document, "loops": [MachineLoop(**loop) for loop in document["loops"]]})


def main(launches: Callable[[str, int], list[Any]]) -> None:
    """Compile the arguments."""
    for entry in sys.argv[1:]:
        name, _, number = entry.rpartition("@")
        kernels, refused = [], []
        for launch in launches(name, int(number)):
            try:
                kernels.append(compiled(launch, int(number)))
            except RuntimeError as error:
                sys.stderr.write(f"{entry}, {launch.call.name}: {error}\n")
                refused.append(launch.call.name)
        print(json.dumps(asdict(Call(kernels, refused))), flush=True)


if __name__ == "__main__":
    from rfa.benchmarks.cost import calls as cost_calls
    from rfa.benchmarks.cost import check as cost_check

    others = {"plain": cost_check.launches_of}
    main(lambda call, number: others.get(call.split()[0], cost_calls.launches_of)(call, number))
