"""The golden outputs of a bundle on the torch runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from rfa.export.bundle import Bundle
from rfa.export.golden import loosened
from rfa.service.runtime.golden import Named, reproduce
from rfa.service.runtime.language import StepOutput
from rfa.service.runtime.torch_language import DeviceCache, TorchLanguageRuntime


def check_golden_on(runtime: TorchLanguageRuntime, bundle: Bundle) -> int:
    """Run the golden cases of its bundle on a runtime; returns how many values were compared.

    Raises:
        BundleError: an output differs by more than the tolerance of golden.json or, where matrices are rounded, by
            more than that can explain.
    """
    golden = bundle.golden if runtime.rounding == 0 else loosened(bundle.golden, runtime.rounding)
    return reproduce(runtime, bundle, AttentionSession(runtime), where="this device", golden=golden)


@dataclass(frozen=True)
class AttentionSession:
    """The graph "attention" of the bundle, for a batch of one, as `rfa.export.golden` runs it."""

    runtime: TorchLanguageRuntime

    def get_outputs(self) -> list[Named]:
        """What `run` can be asked for."""
        return [Named(name) for name in (*StepOutput._fields, "new_keys", "new_values")]

    def run(self, output_names: list[str] | None, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs asked for, in that order."""
        context = self.runtime.start("attention")
        assert isinstance(context, DeviceCache)
        valid, device = int(inputs["position"][0]), context.keys.device
        context.extend(*(torch.tensor(inputs[name][0, :, :, :valid], device=device) for name in ("keys", "values")))
        output, advance = self.runtime.extend(context, inputs["tokens"][0].tolist(), inputs["noise"])
        rows = {"new_keys": advance.keys, "new_values": advance.values}
        outputs = {**output._asdict(), **{name: part[None].cpu().numpy() for name, part in rows.items()}}
        return [outputs[name] for name in output_names or outputs]
