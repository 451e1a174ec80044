"""The golden outputs of a bundle on the torch runtime: its graphs' interfaces over the runtime's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from export.bundle import Bundle, BundleError
from export.golden import GoldenMismatch, run_golden
from service.engine.language_runtime import SlotContext, StepOutput
from service.engine.torch_language_runtime import DeviceCache, TorchLanguageRuntime

Arrays = dict[str, np.ndarray]


def check_golden_on(runtime: TorchLanguageRuntime, bundle: Bundle) -> int:
    """Run the golden cases of its bundle on a runtime; returns how many values were compared.

    Raises:
        BundleError: an output differs by more than the tolerance of golden.json or, where matrices are rounded, by
            more than that can explain.
    """
    sessions = {name: GoldenSession(runtime, name) for name in ("step", "prefill", "attention")}
    golden = bundle.golden if runtime.rounding == 0 else _loosened(bundle.golden, runtime.rounding)
    try:
        return run_golden(golden, sessions, bundle.weights())
    except GoldenMismatch as error:
        raise BundleError(f"golden.json on this device: {error}") from None


def _loosened(golden: Mapping[str, Any], rounding: float) -> dict[str, Any]:
    """The cases with room for `rounding`, absolute and relative; with it, a lead may turn around."""
    cases = []
    for case in golden["cases"]:
        outputs = {name: {**expected} for name, expected in case["outputs"].items()}
        for expected in outputs.values():
            expected.pop("argmax", None)
        wider = {name: max(case[name], rounding) for name in ("absolute", "relative")}
        cases.append({**case, **wider, "outputs": outputs})
    return {"cases": cases}


@dataclass(frozen=True)
class GoldenSession:
    """A graph of the bundle, for a batch of one, as `export.golden` runs it."""

    runtime: TorchLanguageRuntime
    graph: str

    def get_outputs(self) -> list[_Named]:
        """What `run` can be asked for."""
        state = ("new_keys", "new_values") if self.graph == "attention" else ("next_means", "next_precisions")
        return [_Named(name) for name in (*StepOutput._fields, *state)]

    def run(self, output_names: list[str] | None, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs asked for, in that order."""
        if self.graph == "attention":
            outputs = self._attention(inputs)
        else:
            outputs = self._recurrent(inputs)
        return [outputs[name] for name in output_names or outputs]

    def _recurrent(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        context = SlotContext(self.runtime.pool, int(inputs["position"][0]))
        try:
            context.write(inputs["means"][0], inputs["precisions"][0])
            advance: Any
            if self.graph == "step":
                output, (advance,) = self.runtime.step([context], inputs["token"].tolist(), inputs["noise"])
            else:
                output, advance = self.runtime.read_prompt(context, inputs["tokens"][0].tolist())
            advance.commit()
            means, precisions = context.read()
        finally:
            context.release()
        return {**output._asdict(), "next_means": means[None], "next_precisions": precisions[None]}

    def _attention(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        context = self.runtime.start("attention")
        assert isinstance(context, DeviceCache)
        valid, device = int(inputs["position"][0]), context.keys.device
        context.extend(*(torch.tensor(inputs[name][0, :, :, :valid], device=device) for name in ("keys", "values")))
        output, advance = self.runtime.extend(context, inputs["tokens"][0].tolist(), inputs["noise"])
        rows = {"new_keys": advance.keys, "new_values": advance.values}
        return {**output._asdict(), **{name: part[None].cpu().numpy() for name, part in rows.items()}}


@dataclass(frozen=True)
class _Named:
    name: str
