"""Run the golden outputs of a bundle on a runtime that does not use its graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rfa.runtime.bundle.bundle import Bundle, BundleError
from rfa.runtime.bundle.golden import GoldenMismatch, Session, run_golden
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StatePool
from rfa.runtime.text.contexts import Advance, Array, SlotContext, StepOutput


class Recurrent(Protocol):
    """Interface of a runtime on which golden cases run."""

    name: str
    pool: StatePool
    initial: dict[str, Array]
    passes: PassesRange

    def step(self, contexts: Any, tokens: Sequence[int], noise: Any) -> tuple[StepOutput, Sequence[Advance]]:
        """Process one token of each of B streams. Return the outputs, and the updates of the contexts."""

    def read_prompts(
        self, contexts: Sequence[SlotContext], pieces: Sequence[Sequence[int]]
    ) -> tuple[StepOutput, Sequence[Advance]]:
        """Process a chunk of the prompt of each of B streams. Return the outputs of the last tokens, and the updates of
        the contexts."""


def reproduce(
    runtime: Recurrent, bundle: Bundle, attention: Session, *, where: str, golden: Mapping[str, Any] | None = None
) -> int:
    """Run golden cases on a runtime, and return the number of compared values.

    Args:
        runtime: Runtime for the recurrent cases.
        bundle: Bundle of the model.
        attention: Session that runs the cases of attention mode.
        where: Name of the runtime, for messages.
        golden: Cases to run. By default, the cases in the bundle's golden.json.

    Raises:
        BundleError: If an output differs by more than the tolerance of its case, or a case has a number of passes that
            the runtime does not support.
    """
    sessions = {
        "step": RecurrentSession(runtime, "step"),
        "prefill": RecurrentSession(runtime, "prefill"),
        "attention": attention,
    }
    try:
        return run_golden(golden or bundle.golden, sessions, bundle.weights())
    except GoldenMismatch as error:
        raise BundleError(f"golden.json on {where}: {error}") from None


@dataclass(frozen=True)
class RecurrentSession:
    """A session for the graph "step" or "prefill" with a batch size of one. See `rfa.runtime.bundle.golden.Session`."""

    runtime: Recurrent
    graph: str

    def get_outputs(self) -> list[Named]:
        """Return the names of the outputs of `run`."""
        return [Named(name) for name in (*StepOutput._fields, *(f"next_{name}" for name in self.runtime.initial))]

    def run(self, output_names: list[str] | None, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run the graph on the inputs, and return the outputs with the given names in the same order."""
        passes = int(inputs["passes"][0]) if "passes" in inputs else None
        passes = self.runtime.passes.checked(passes, self.runtime.name)
        context = SlotContext(self.runtime.pool, int(inputs["position"][0]), passes)
        try:
            context.write({name: inputs[name][0] for name in self.runtime.initial})
            if self.graph == "step":
                output, (advance,) = self.runtime.step([context], inputs["token"].tolist(), inputs["noise"])
            else:
                output, (advance,) = self.runtime.read_prompts([context], [inputs["tokens"][0].tolist()])
            advance.commit()
            state = context.read()
        finally:
            context.release()
        outputs = {**output._asdict(), **{f"next_{name}": part[None] for name, part in state.items()}}
        return [outputs[name] for name in output_names or outputs]


@dataclass(frozen=True)
class Named:
    """Description of an output of a session, which contains only its name."""

    name: str
