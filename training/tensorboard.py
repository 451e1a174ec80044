"""Write the losses of a run for TensorBoard, if its package is installed. To view them: `tensorboard --logdir RUN`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_events(out: Path, row: Mapping[str, Any]) -> None:
    """Append a line of the metrics file to the event files in `tensorboard`. Without the package, do nothing."""
    if importlib.util.find_spec("tensorboard") is None:
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(out / "tensorboard") as writer:
        for kind in ("train", "valid"):
            for mode, loss in row[kind].items():
                writer.add_scalar(f"{kind}/{mode}", loss, row["step"])
