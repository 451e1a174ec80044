"""Run the golden outputs of a bundle on the torch runtime."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.bundle.golden import loosen
from rfa.runtime.golden import Named, reproduce
from rfa.runtime.gpu.language import TorchLanguageRuntime
from rfa.runtime.gpu.pages import PagedContext
from rfa.runtime.text.contexts import StepOutput


def check_golden_on(runtime: TorchLanguageRuntime, bundle: Bundle) -> int:
    """Run the golden cases of a bundle on a runtime, and return the number of compared values.

    Cases with fewer passes than the maximum of the model are skipped, because the GPU does not support them. With
    rounded matrices, the tolerance for rounding could hide a small error of a kernel. A second, temporary runtime with
    float32 matrices must therefore meet the tolerance of golden.json.

    Raises:
        BundleError: If an output differs by more than the tolerance of golden.json, or of the rounding.
    """
    golden = bundle.golden | {"cases": supported_cases(bundle.golden["cases"], runtime.passes.most)}
    if runtime.rounding == 0:
        return _reproduced(runtime, bundle, "this device", golden)
    unrounded = TorchLanguageRuntime(bundle, device=runtime.device, streams=1, max_rows=1, dtype=torch.float32)
    _reproduced(unrounded, bundle, "this device in float32", golden)
    return _reproduced(runtime, bundle, "this device", loosen(golden, runtime.rounding))


def supported_cases(cases: list[dict[str, Any]], passes: int) -> list[dict[str, Any]]:
    """Return the cases before the first one whose number of passes differs from `passes`. Later cases are left out,
    because they may use the outputs of that case."""

    def has_these(case: dict[str, Any]) -> bool:
        return case["inputs"].get("passes", {"values": [passes]})["values"] == [passes]

    return list(itertools.takewhile(has_these, cases))


def _reproduced(runtime: TorchLanguageRuntime, bundle: Bundle, where: str, golden: dict[str, Any]) -> int:
    return reproduce(runtime, bundle, AttentionSession(runtime), where=where, golden=golden)


@dataclass(frozen=True)
class AttentionSession:
    """The graph "attention" of the bundle in the interface of a session for golden outputs, with a batch size of
    one."""

    runtime: TorchLanguageRuntime

    def get_outputs(self) -> list[Named]:
        """Return the names of the outputs of `run`."""
        return [Named(name) for name in (*StepOutput._fields, "new_keys", "new_values")]

    def run(self, output_names: list[str] | None, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run the graph on the inputs, and return the outputs with the given names in the same order."""
        valid, tokens = int(inputs["position"][0]), inputs["tokens"][0].tolist()
        context = PagedContext(self.runtime.pages, valid + len(tokens))
        try:
            pools = {"keys": self.runtime.pages.keys, "values": self.runtime.pages.values}
            for name, pool in pools.items():
                rows = torch.tensor(inputs[name][0, :, :, :valid]).transpose(1, 2)
                pool[:, context.rows(0, valid)] = rows.to(pool.device, pool.dtype)
            context.position = valid
            output, _ = self.runtime.extend([context], [tokens], inputs["noise"])
            rows = context.rows(valid, valid + len(tokens))
            new = {f"new_{name}": pool[:, rows].transpose(1, 2)[None].float() for name, pool in pools.items()}
        finally:
            context.release()
        outputs = {**output._asdict(), **{name: part.cpu().numpy() for name, part in new.items()}}
        return [outputs[name] for name in output_names or outputs]
