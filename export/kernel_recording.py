"""Record the kernel launches while a language model is served on a GPU, for several numbers of streams and tokens.

Launches whose kernels have compatible properties are merged, so that one compiled kernel serves all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch

from rfa.export.served_passes import DTYPES, ServedPasses, initial_slots
from rfa.model.kernel_launches import KernelLaunch, recorded_launches
from rfa.model.language import LanguageModel, StepOutput
from rfa.model.placement import simulated_gpu
from rfa.runtime.text.config import LanguageModelConfig

# Numbers of streams and tokens to record. They include one and many, numbers that are divisible by 16 and others, and
# numbers for which each block size of the matrix products is used.
SIZES = ((1, 1), (3, 5), (16, 32), (5, 300), (40, 1), (100, 1))


def launches_kernels(config: LanguageModelConfig, architecture: int) -> bool:
    """Return whether serving a model on a GPU of this architecture uses the kernels of this package."""
    try:
        with simulated_gpu(divmod(architecture, 10)):
            found = ServedPasses(LanguageModel(config), DTYPES[0])
    except ValueError:  # no decoder supports this model
        return False
    return found.has_slots or found.has_attention


def serving_launches(config: LanguageModelConfig, architecture: int) -> list[KernelLaunch]:
    """Return the kernel launches of prefill, step, attention and sampling of a served model, for each dtype in
    `DTYPES`."""
    model = LanguageModel(config)
    with recorded_launches(architecture) as found, torch.no_grad():
        for dtype in DTYPES:
            passes = ServedPasses(model, dtype)
            for streams, length in SIZES:
                if passes.has_slots:
                    _run_slots(passes, model, streams, length)
                if passes.has_attention:
                    _run_attention(passes, streams, length)
    return found


def _run_slots(passes: ServedPasses, model: LanguageModel, streams: int, length: int) -> None:
    slots = initial_slots(model, streams)
    passes.prefill([[0] * length] * streams, [0] * streams, slots)
    output, _ = passes.step([0] * streams, [length] * streams, passes.silence(streams), slots)
    _run_draws(passes, output)


def _run_attention(passes: ServedPasses, streams: int, length: int) -> None:
    empty = [passes.empty_cache()] * streams
    _, held = passes.extend([[0] * length] * streams, empty, passes.silence(streams))
    output, _ = passes.extend([[0]] * streams, held, passes.silence(streams))
    _run_draws(passes, output)


def _run_draws(passes: ServedPasses, output: StepOutput) -> None:
    for is_filtered in (False, True):
        passes.draw(output, is_filtered)


def merge_launches(launches: Sequence[KernelLaunch]) -> list[KernelLaunch]:
    """Group the launches that one compiled kernel can serve. Return one launch per group, with the properties that all
    launches of the group have in common."""
    groups: dict[str, list[KernelLaunch]] = defaultdict(list)
    for launch in launches:
        groups[_key(launch)].append(launch)
    return [_merged(group) for group in groups.values()]


def _is_number(launch: KernelLaunch, index: int, name: str) -> bool:
    """Return whether a parameter is a number that may differ between the launches of a kernel. The number 1 may not
    differ, because Triton compiles it as a constant."""
    value = launch.call.values[name]
    return not launch.function.params[index].is_constexpr and isinstance(value, int)


def _key(launch: KernelLaunch) -> str:
    """Return the properties that all launches of one kernel have in common: constants, types of pointers, and
    options."""
    parts = [
        (name, kind, launch.constexprs.get((index,)))
        for index, (name, kind) in enumerate(launch.signature.items())
        if not _is_number(launch, index, name)
    ]
    return repr((launch.call.name, parts, sorted(launch.call.options.items())))


def _merged(group: Sequence[KernelLaunch]) -> KernelLaunch:
    first = group[0]
    signature, constexprs, attributes = (
        dict(first.signature), dict(first.constexprs), dict(first.attributes),
    )  # fmt: skip
    for index, name in enumerate(signature):
        kinds = {launch.signature[name] for launch in group}
        if len(kinds) > 1:  # the group has ones and other numbers, or numbers of different widths
            signature[name] = max(kinds - {"constexpr"})
            constexprs.pop((index,), None)
            attributes[(index,)] = []
        elif any(launch.attributes.get((index,)) != attributes.get((index,)) for launch in group):
            attributes[(index,)] = []
    return replace(first, signature=signature, constexprs=constexprs, attributes=attributes)
