"""What serving a language model on a GPU launches, learned from the launches themselves, at several sizes.

A kernel is compiled for what all its launches have in common, so that one serves them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from rfa.export.kernel_model import KernelModel, Projected, has_attention_kernels, has_slot_kernels
from rfa.model.config import LanguageModelConfig
from rfa.model.kernel_launches import KernelLaunch, recorded_launches
from rfa.model.language import LanguageModel

# Streams and tokens at which launches are recorded: one and many, of sizes that nothing divides and that 16 does.
SIZES = ((1, 1), (3, 5), (16, 32), (5, 300))


def serving_launches(config: LanguageModelConfig, architecture: int) -> list[KernelLaunch]:
    """The launches of a model's layer: a piece of a prompt and a step by slots, and attention, of one sequence behind a
    prefix and of several packed ones."""
    # The second layer's part of a state may lie where nothing is divisible.
    model = KernelModel(LanguageModel(replace(config, n_layers=2, vocab_size=16)), architecture)
    with recorded_launches(architecture) as found, torch.no_grad():
        for streams, length in SIZES:
            tokens = torch.zeros(streams, length, dtype=torch.int64)
            if has_slot_kernels(config):
                _run_slots(model, tokens)
            if has_attention_kernels(config):
                _run_attention(model, tokens)
    return found


def _run_slots(model: KernelModel, tokens: torch.Tensor) -> None:
    start = model.model.init_state(len(tokens))
    slots = start.means.contiguous(), start.precisions.contiguous()
    noise = torch.zeros(len(tokens), model.model.config.n_heads, 2 * model.model.config.head_dim)
    model.prefill(tokens, start.position, *slots)
    model.step(tokens[:, 0], start.position, noise, *slots)


def _run_attention(model: KernelModel, tokens: torch.Tensor) -> None:
    for layer in model.projected(tokens[:1]):
        for part in behind_prefix(layer):
            model.attend(*part)
        packed, starts = packed_pair(layer)
        model.attend(*packed, query_starts=starts, key_starts=starts)


def behind_prefix(layer: Projected) -> Iterator[Projected]:
    """All queries of a sequence; then its last one, behind the others."""
    yield layer
    yield layer._replace(q=layer.q[:, -1:])


def packed_pair(layer: Projected) -> tuple[Projected, torch.Tensor]:
    """A sequence and its first token by itself, one behind the other, and where they start."""
    q, k, v = (torch.cat([part, part[:, :1]], dim=1) for part in layer[:3])
    length = layer.q.shape[1]
    return Projected(q, k, v, layer.dynamics), torch.tensor([0, length, length + 1], dtype=torch.int32)


def common(launches: Sequence[KernelLaunch]) -> list[KernelLaunch]:
    """A launch for each group of them that one kernel can serve, of what the group has in common."""
    groups: dict[str, list[KernelLaunch]] = defaultdict(list)
    for launch in launches:
        groups[_key(launch)].append(launch)
    return [_merged(group) for group in groups.values()]


def _is_number(launch: KernelLaunch, index: int, name: str) -> bool:
    """Whether a parameter is a number of a launch: those that are 1 Triton takes for constants."""
    value = launch.call.values[name]
    return not launch.function.params[index].is_constexpr and isinstance(value, int)


def _key(launch: KernelLaunch) -> str:
    """What launches of one kernel share: constants, types of pointers, options."""
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
        if len(kinds) > 1:  # ones and other numbers, or numbers of either size
            signature[name] = max(kinds - {"constexpr"})
            constexprs.pop((index,), None)
            attributes[(index,)] = []
        elif any(launch.attributes.get((index,)) != attributes.get((index,)) for launch in group):
            attributes[(index,)] = []
    return replace(first, signature=signature, constexprs=constexprs, attributes=attributes)
