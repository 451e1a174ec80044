"""The kernels of a bundle, executed on its golden inputs without a GPU: their PTX, by the emulator (`rfa.export.ptx`).

Slots    the golden calls of prefill and step, with the slots of every layer by the kernels, against the same calls of
         the bundle's graphs
attention    the golden prompt and what follows it, again and again until blocks are far apart, as the last layer gets
             it: whole, behind a prefix and packed, against the reference in float64 on the same rounded numbers
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rfa.export.bundle import Bundle
from rfa.export.documents import BundleError
from rfa.export.golden import GoldenMismatch, run_golden
from rfa.export.kernel_model import KernelModel, Projected, has_attention_kernels, has_slot_kernels
from rfa.export.kernel_recording import behind_prefix, packed_pair
from rfa.export.ptx import machine
from rfa.export.ptx.program import UnknownPtxError
from rfa.export.stored_kernels import StoredKernel
from rfa.model.attention.reference import AttentionResult, attend
from rfa.model.kernel_launches import KernelCall, launches_taken, source_hash

# What golden outputs allow another processor.
SLOT_LIMIT = 1e-4
# bfloat16 rounds weights, values of a product and the result, by 2^-9 each; with what the table of distant blocks is
# off by, below four of them. What is not rounded to it is off by that alone, 1.7e-4 of a weight, and float32.
ATTENTION_LIMITS = {"out": 2.0**-7, "log_norm": 2.0**-12, "precision": 2.0**-12}
# More than two blocks of queries and their keys.
ATTENTION_TOKENS = 300


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
            program = machine.load(kernel.ptx)
            machine.run(program, call.grid, arguments, shared_bytes=kernel.entry.shared_bytes)
        except (UnknownPtxError, machine.FaultsError) as error:
            raise BundleError(f"{kernel.entry.file}.ptx: {str(error)[:300]}") from None
        self.played[kernel.entry.file] = self.played.get(kernel.entry.file, 0) + 1
        return True


def kernel_errors(bundle: Bundle, model: Any) -> Iterator[tuple[str, float, float]]:
    """What was compared, the largest difference in units of the largest number (at least 1), and the limit for it; a
    kernel that nothing launched is infinitely far off.

    Raises:
        BundleError: a launch that no kernel fits, a kernel of another source, or one that does what none may.
    """
    for architecture in sorted({kernel.entry.architecture for kernel in bundle.kernels}):
        emulated = Emulated([kernel for kernel in bundle.kernels if kernel.entry.architecture == architecture])
        launched = KernelModel(model, int(architecture.removeprefix("sm_")))
        with launches_taken(emulated.take), torch.no_grad():
            if has_slot_kernels(model.config):
                yield from _slot_errors(bundle, launched, architecture)
            if has_attention_kernels(model.config):
                yield from _attention_errors(bundle, launched, architecture)
        for kernel in emulated.kernels:
            if kernel.entry.file not in emulated.played:
                yield f"{kernel.entry.file}: launched by nothing", float("inf"), 0.0


def _error(actual: Any, expected: Any) -> float:
    found, wanted = (np.asarray(x, np.float64) for x in (actual, expected))
    return float(np.abs(found - wanted).max(initial=0)) / max(1.0, float(np.abs(wanted).max(initial=0)))


@dataclass
class _Session:
    """A graph of the bundle, run by the kernels and, to see how far they are apart, as it is; the kernels' outputs go
    on."""

    launched: KernelModel
    session: Any
    graph: str
    errors: dict[str, float]

    def get_outputs(self) -> Any:
        return self.session.get_outputs()

    def run(self, output_names: list[str] | None, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        names = output_names or [node.name for node in self.session.get_outputs()]
        expected = self.session.run(names, dict(inputs))
        given = {name: torch.tensor(array) for name, array in inputs.items()}
        slots = given["means"], given["precisions"]
        if self.graph == "step":
            output, *after = self.launched.step(given["token"], given["position"], given["noise"], *slots)
        else:
            output, *after = self.launched.prefill(given["tokens"], given["position"], *slots)
        found = {**output._asdict(), "next_means": after[0], "next_precisions": after[1]}
        for name, wanted in zip(names, expected, strict=True):
            error = _error(found[name], wanted)
            # Not max(): it would drop a NaN.
            if not error <= self.errors.get(name, 0.0):
                self.errors[name] = error
            self.errors.setdefault(name, 0.0)
        return [found[name].numpy() for name in names]


def _slot_errors(bundle: Bundle, launched: KernelModel, architecture: str) -> Iterator[tuple[str, float, float]]:
    errors: dict[str, float] = {}
    sessions = {name: _Session(launched, bundle.session(name), name, errors) for name in ("prefill", "step")}
    try:
        run_golden(bundle.golden, {**sessions, "attention": bundle.session("attention")}, bundle.weights())
    except GoldenMismatch as error:
        raise BundleError(f"golden.json by the kernels for {architecture}: {error}") from None
    for name, largest in sorted(errors.items()):
        yield f"kernels for {architecture}, golden calls: {name}", largest, SLOT_LIMIT


def _attention_errors(bundle: Bundle, launched: KernelModel, architecture: str) -> Iterator[tuple[str, float, float]]:
    text = [*bundle.golden["prompt"], *bundle.golden["continuation"]["attention"]]
    tokens = (text * (ATTENTION_TOKENS // len(text) + 1))[:ATTENTION_TOKENS]
    layer = launched.projected(torch.tensor([tokens]))[-1]
    whole = _reference(layer, launched)
    compared = [
        (launched.attend(*part), AttentionResult(*(x[:, -part.q.shape[1] :] for x in whole)))
        for part in behind_prefix(layer)
    ]
    packed, starts = packed_pair(layer)
    alone = _reference(layer._replace(q=layer.q[:, :1], k=layer.k[:, :1], v=layer.v[:, :1]), launched)
    both = AttentionResult(*(torch.cat(pair, dim=1) for pair in zip(whole, alone, strict=True)))
    compared.append((launched.attend(*packed, query_starts=starts, key_starts=starts), both))
    for name, limit in ATTENTION_LIMITS.items():
        errors = [_error(getattr(found, name).double(), getattr(wanted, name)) for found, wanted in compared]
        # numpy's, for Python's would drop a NaN.
        yield f"kernels for {architecture}, attention of the golden text: {name}", float(np.max(errors)), limit


def _reference(layer: Projected, launched: KernelModel) -> AttentionResult:
    """Of queries and keys from the same first token on, in float64."""
    times = torch.arange(layer.q.shape[1], dtype=torch.float64)[None]
    q, k, v = (part.double() for part in layer[:3])
    kernel = launched.model.config.kernel
    return attend(q, k, v, layer.dynamics.to(torch.float64), query_times=times, key_times=times, kernel=kernel)
