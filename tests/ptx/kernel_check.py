"""The stored kernels of a bundle, run in the PTX emulator by the passes that serve it on a GPU.

    python -m tests.ptx.kernel_check BUNDLE     prints each comparison as a line of JSON

Golden calls    of prefill, step and attention with float32 matrices, against the same calls of the bundle's graphs
text    in each dtype: the golden text, again and again until blocks are far apart, and beside it a stream of one token,
        read by slots with a step after it, and by attention in two pieces; against the same passes in eager code;
        and the tokens drawn after each
products        of a layer and of the vocabulary, of as many rows as there are kernels for
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rfa.export.kernel_recording import SIZES
from rfa.export.served_passes import DTYPES, Cache, ServedPasses, initial_slots
from rfa.model.decoder import SlotPool, normed, product
from rfa.model.decoder_layers import NORM_EPS
from rfa.model.kernel_launches import KernelCall, intercepted_launches, source_hash
from rfa.model.language import StepOutput
from rfa.model.loading import model_of
from rfa.model.placement import simulated_gpu
from rfa.model.recurrence.slots import is_on_gpu
from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.bundle.documents import BundleError
from rfa.runtime.bundle.golden import GoldenMismatch, run_golden
from rfa.runtime.bundle.stored_kernels import StoredKernel
from rfa.runtime.gpu.golden import supported_cases
from rfa.runtime.text.config import Mode
from tests.ptx.emulator import machine

# What golden outputs allow another processor.
FLOAT32_LIMIT = 1e-4
# Of a layer in bfloat16: attention rounds queries, keys, values and weights, by 2^-9 each, and eager code does not.
BFLOAT16_LAYER_LIMIT = 4 * 2.0**-9
# More than two blocks of queries and their keys.
TEXT_TOKENS = 300


@dataclass
class Emulated:
    """Takes launches, and executes what is stored for them.

    kernels: of one architecture; played: how often each, by its file.
    """

    kernels: Sequence[StoredKernel]
    played: dict[str, int] = field(default_factory=dict)

    def take(self, call: KernelCall) -> bool:
        """See `rfa.model.kernel_launches`.

        Raises:
            BundleError: none fits, or the one that does is of another source, or does what no kernel may.
        """
        found = [kernel for kernel in self.kernels if kernel.fits(call.name, call.values, call.options)]
        if not found:
            raise BundleError(f"no kernel of the bundle fits the launch of {call.name!r} that serving makes")
        kernel = found[0]
        if kernel.entry.source != source_hash(call.function):
            raise BundleError(f"kernel {call.name!r} is of another version of rfa-server: export the bundle anew")
        arguments = [call.values[part.name] for part in kernel.entry.parameters if part.type != "constexpr"]
        try:
            machine.run(machine.load(kernel.ptx), call.grid, arguments, shared_bytes=kernel.entry.shared_bytes)
        except (ValueError, machine.FaultsError) as error:
            raise BundleError(f"{kernel.entry.file}.ptx: {str(error)[:300]}") from None
        self.played[kernel.entry.file] = self.played.get(kernel.entry.file, 0) + 1
        return True


def kernel_errors(bundle: Bundle, model: Any) -> Iterator[tuple[str, float, float]]:
    """What was compared, the largest difference in units of the largest number (at least 1), and the limit for it; a
    kernel that nothing launched is infinitely far off.

    Raises:
        BundleError: a launch that no kernel fits, a kernel of another source, or one that does what none may.
    """
    architectures = sorted({kernel.entry.architecture for kernel in bundle.kernels})
    for architecture in architectures:
        own_kernels = [kernel for kernel in bundle.kernels if kernel.entry.architecture == architecture]
        emulated = Emulated(own_kernels)
        all_runs = [Runs.of(model, dtype, emulated, int(architecture.removeprefix("sm_"))) for dtype in DTYPES]
        for runs in all_runs:
            errors: dict[str, float] = {}
            for compare in _parts(bundle, runs):
                compare(errors)
            for what, error in errors.items():
                name = str(runs.dtype).removeprefix("torch.")
                yield f"kernels for {architecture}, {what} in {name}", error, _limit(model, runs.dtype)
        for kernel in emulated.kernels:
            if kernel.entry.file not in emulated.played:
                yield f"{kernel.entry.file}: launched by nothing", float("inf"), 0.0


def _limit(model: Any, dtype: torch.dtype) -> float:
    return FLOAT32_LIMIT if dtype == torch.float32 else float(model.config.n_layers * BFLOAT16_LAYER_LIMIT)


def _parts(bundle: Bundle, runs: Runs) -> list[Callable[[dict[str, float]], None]]:
    """The comparisons in one dtype; each adds its errors by name."""
    tokens, is_exact = _text(bundle), runs.dtype == torch.float32
    parts: list[Callable[[dict[str, float]], None]] = []
    if runs.launched.has_slots:
        parts.append(partial(_compare_slots, runs, tokens))
    if runs.launched.has_attention:
        parts.append(partial(_compare_attention, runs, tokens))
    if is_exact:
        return [*parts, partial(_compare_golden, bundle, runs)]
    # Those of float32 are the same kernels for any number of rows.
    modes: dict[Mode, bool] = {"recurrent": runs.launched.has_slots, "attention": runs.launched.has_attention}
    return [*parts, *(partial(_compare_products, runs, mode) for mode, has_any in modes.items() if has_any)]


class CheckedPasses(ServedPasses):
    """`ServedPasses`, and single products."""

    def products(self, mode: Mode, rows: int) -> dict[str, Tensor]:
        """Products of a mode's first layer with rows of noise: many rows launch other kernels than few."""
        x, layer = _noise(rows, self.decoder.config.d_model), self.decoder.stack(mode).layers[0]
        readout = layer.readout
        mixed, total = _noise(rows, readout.mix_out.shape[1]).to(readout.mix_out.dtype), x.clone()
        if not is_on_gpu(readout.mix_in):
            total = total + product(mixed, readout.mix_out)
            inner = F.gelu(product(normed(total, readout.feed_forward_norm), layer.up))
            joint = product(normed(x, readout.mixer_norm), readout.mix_in)
            return {"joint": joint, "total": total + product(inner, layer.down)}
        from rfa.model.decoder_triton import finish_layer, joint_product

        joint = joint_product(x, layer)
        finish_layer(total, mixed, layer)
        return {"joint": joint, "total": total}

    def logits(self, mode: Mode, rows: int) -> dict[str, Tensor]:
        """Logits of rows of noise."""
        stack, embedding, config = self.decoder.stack(mode), self.decoder.embedding, self.decoder.config
        x = _noise(rows, config.d_model)
        # After a step layers have flags for their slots, after a prompt they have none.
        layer_counts = {"logits": len(stack.layers), "logits of prompts": 0}
        if not is_on_gpu(embedding):
            return dict.fromkeys(layer_counts, product(normed(x, stack.norm), embedding))
        from rfa.model.decoder_triton import Outcome, compute_logits
        from rfa.model.product_triton import Norm

        found = {}
        for name, layers in layer_counts.items():
            outcome = Outcome.empty(rows, layers, config.n_heads, 1, embedding.device)
            outcome.evidence.fill_(1)
            outcome.broken.zero_()
            found[name] = compute_logits(x, Norm(stack.norm, NORM_EPS), embedding, outcome)[0]
        return found


def _noise(rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))


class Runs(NamedTuple):
    """The passes of a model in one dtype: those that launch kernels, which are emulated, and the eager ones."""

    dtype: torch.dtype
    launched: CheckedPasses
    eager: CheckedPasses
    emulated: Emulated
    architecture: int

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype, emulated: Emulated, architecture: int) -> Runs:
        """For a GPU of this architecture."""
        with simulated_gpu(divmod(architecture, 10)):
            launched = CheckedPasses(model, dtype)
        return cls(dtype, launched, CheckedPasses(model, dtype), emulated, architecture)

    @torch.no_grad()
    def by_kernels(self, name: str, *arguments: Any) -> Any:
        """A pass as on the GPU."""
        with ExitStack() as stack:
            stack.enter_context(simulated_gpu(divmod(self.architecture, 10)))
            stack.enter_context(intercepted_launches(self.emulated.take))
            return getattr(self.launched, name)(*arguments)

    @torch.no_grad()
    def eagerly(self, name: str, *arguments: Any) -> Any:
        """The same."""
        return getattr(self.eager, name)(*arguments)


def _error(actual: Any, expected: Any) -> float:
    found, required = (np.asarray(x, np.float64) for x in (actual, expected))
    return float(np.abs(found - required).max(initial=0)) / max(1.0, float(np.abs(required).max(initial=0)))


def _note(errors: dict[str, float], name: str, error: float) -> None:
    # Not max(): it would drop a NaN.
    if not error <= errors.setdefault(name, 0.0):
        errors[name] = error


# The golden calls.


@dataclass
class _Session:
    """A graph of the bundle, run by the kernels and, to see how far they are apart, as it is; the kernels' outputs go
    on."""

    runs: Runs
    session: Any
    graph: str
    errors: dict[str, float]

    def get_outputs(self) -> Any:
        return self.session.get_outputs()

    def run(self, output_names: list[str] | None, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        names = output_names or [node.name for node in self.session.get_outputs()]
        expected = self.session.run(names, dict(inputs))
        given = {name: torch.tensor(array) for name, array in inputs.items()}
        found = _attention(self.runs, given) if self.graph == "attention" else _slots(self.runs, self.graph, given)
        for name, required in zip(names, expected, strict=True):
            _note(self.errors, f"golden calls: {name}", _error(found[name], required))
        return [found[name].numpy() for name in names]


def _slots(runs: Runs, graph: str, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Outputs of the graphs "prefill" and "step"; batches first in slots `[B, L, …]`."""
    slots = SlotPool(*(given[name].transpose(0, 1).contiguous() for name in ("means", "precisions")))
    positions = given["position"].tolist()
    if graph == "step":
        output, after = runs.by_kernels("step", given["token"].tolist(), positions, given["noise"], slots)
    else:
        output, after = runs.by_kernels("prefill", given["tokens"].tolist(), positions, slots)
    means, precisions = (part.transpose(0, 1) for part in after)
    return {**output._asdict(), "next_means": means, "next_precisions": precisions}


def _attention(runs: Runs, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Outputs of the graph "attention", whose caches are `[B, L, H, P, 2D]`."""
    held = [
        Cache(*(given[name][row, :, :, :valid].transpose(1, 2) for name in ("keys", "values")))
        for row, valid in enumerate(given["position"].tolist())
    ]
    output, new = runs.by_kernels("extend", given["tokens"].tolist(), held, given["noise"])
    keys, values = (torch.stack(part).transpose(2, 3) for part in zip(*new, strict=True))
    return {**output._asdict(), "new_keys": keys, "new_values": values}


def _compare_golden(bundle: Bundle, runs: Runs, errors: dict[str, float]) -> None:
    sessions: dict[str, Any] = {name: bundle.session(name) for name in bundle.manifest.graphs}
    graphs = [*(["prefill", "step"] if runs.launched.has_slots else []), *["attention"] * runs.launched.has_attention]
    launched = {name: _Session(runs, sessions[name], name, errors) for name in graphs}
    try:
        # The kernels have one number of passes, that of the configuration.
        cases = supported_cases(bundle.golden["cases"], bundle.manifest.config["inner"])
        run_golden(bundle.golden | {"cases": cases}, {**sessions, **launched}, bundle.weights())
    except GoldenMismatch as error:
        raise BundleError(f"golden.json by the kernels for sm_{runs.architecture}: {error}") from None


# The text.


def _text(bundle: Bundle) -> list[int]:
    """Token ids of the golden text, again and again, and one more."""
    followed = bundle.golden["continuation"]
    text = [*bundle.golden["prompt"], *followed.get("attention", followed.get("recurrent", []))]
    return (text * (TEXT_TOKENS // len(text) + 1))[: TEXT_TOKENS + 1]


def _compare_products(runs: Runs, mode: Mode, errors: dict[str, float]) -> None:
    """Of as many rows as there are kernels for."""
    streams = {streams for streams, _ in SIZES}
    tokens = {count * length for count, length in SIZES}
    for name, all_rows in (("products", streams | tokens), ("logits", streams)):
        for rows in sorted(all_rows):
            found, required = runs.by_kernels(name, mode, rows), runs.eagerly(name, mode, rows)
            for part in required:
                _note(errors, f"products of many rows: {part}", _error(found[part], required[part]))


def _compare_slots(runs: Runs, tokens: Sequence[int], errors: dict[str, float]) -> None:
    pieces, slots = [tokens[:-1], tokens[:1]], initial_slots(runs.eager.model, 2)
    arguments: tuple[Any, ...] = (pieces, [0, 0], slots)
    for name in ("prefill", "step"):
        (output, after), (required, expected) = runs.by_kernels(name, *arguments), runs.eagerly(name, *arguments)
        for part in required._fields:
            _note(errors, f"{name} of the golden text: {part}", _error(getattr(output, part), getattr(required, part)))
        for part in expected._fields:
            _note(errors, f"{name} of the golden text: {part}", _error(getattr(after, part), getattr(expected, part)))
        _compare_draws(runs, required, errors)
        noise = torch.from_numpy(np.random.default_rng(0).standard_normal(runs.eager.silence(2).shape)).float()
        arguments = ([tokens[-1]] * 2, [len(piece) for piece in pieces], noise, expected)


def _compare_attention(runs: Runs, tokens: Sequence[int], errors: dict[str, float]) -> None:
    held = [runs.eager.empty_cache()] * 2
    for pieces in ([tokens[:-1], tokens[:1]], [tokens[-1:]] * 2):
        arguments = pieces, held, runs.eager.silence(2)
        (output, found), (required, expected) = (
            runs.by_kernels("extend", *arguments),
            runs.eagerly("extend", *arguments),
        )
        for part in required._fields:
            _note(
                errors, f"attention of the golden text: {part}", _error(getattr(output, part), getattr(required, part))
            )
        for ours, theirs in zip(found, expected, strict=True):
            for part in theirs._fields:
                _note(
                    errors, f"attention of the golden text: {part}", _error(getattr(ours, part), getattr(theirs, part))
                )
        _compare_draws(runs, required, errors)
        held = expected


def _compare_draws(runs: Runs, output: StepOutput, errors: dict[str, float]) -> None:
    """From the same logits."""
    for is_filtered in (False, True):
        found, required = runs.by_kernels("draw", output, is_filtered), runs.eagerly("draw", output, is_filtered)
        for part, change in (("tokens", torch.Tensor.double), ("numbers", torch.Tensor.double), ("sums", torch.log)):
            ours, theirs = (change(getattr(drawn, part)) for drawn in (found, required))
            _note(errors, f"draw after the golden text: {part}", _error(ours, theirs))


def main() -> None:
    """`python -m tests.ptx.kernel_check BUNDLE`: prints [what, error, limit] of each comparison as JSON."""
    bundle = open_bundle(sys.argv[1])
    for comparison in kernel_errors(bundle, model_of(bundle)):
        print(json.dumps(comparison), flush=True)


if __name__ == "__main__":
    main()
