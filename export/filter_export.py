"""Export a run of a filter as a bundle. It contains a calibration on the validation data, golden outputs, and ONNX
graphs of a deep filter.

Deep filters have the following graphs (float32, dynamic batch). Linear filters have no graphs. Their golden outputs are
those of a step and a forecast of the torch model.

    step       observation [B, P], present [B, P], dt [B], noise_scale [B], for a linear filter with K > 1 passes also
               passes [B] from 1 to K, state.<name>  →  the fields of FilterOutput, next.<name>
    prefill    a step in attention mode. Further inputs: lag, valid [B, C] and cache.<name> [B, C, …]. Further outputs:
               row.<name>, which the caller stores
    forecast   horizon [F], state.<name>  →  forecast_mean [B, F, P], forecast_covariance [B, F, P, P]

`initial.<name>` are the tensors of the state before the first observation. `initial.readout_matrix` and
`initial.readout_offset` map the state to observation units.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from rfa.export.filter_calibration import LEADS, calibrate, modes_of
from rfa.export.golden_recording import Earlier, GoldenRecorder, Source, Stored
from rfa.export.onnx_graphs import export_graph, name_inputs
from rfa.export.writing import write_bundle
from rfa.model.batch import Batch
from rfa.model.checkpoint import CONFIG_FILE, load_run_of
from rfa.model.linear_filter import LinearFilter
from rfa.model.state_filter import FilterOutput, Past, StateFilter, Token
from rfa.runtime.bundle.bundle import Bundle, Graph, TensorSpec, open_session
from rfa.runtime.golden import Named

VALIDATION_FILE = "validation.safetensors"
RECORD_FILE = "train.json"
# Sizes while tracing. All are different and none is 1, because the tracer otherwise treats a dimension as constant.
TRACE_BATCH, TRACE_CACHE, TRACE_HORIZON = 2, 5, 3


# Outputs of a step. The last two fields of FilterOutput are stored as next.mean and next.covariance.
STEP_FIELDS = FilterOutput._fields[:-2]
TOKEN = len(Token._fields)


def _token(model: StateFilter, inputs: tuple[Tensor, ...]) -> tuple[Token, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Split the inputs of a graph into the observation, the number of passes if the model uses it, and the remaining
    inputs."""
    end = TOKEN + model.takes_passes()
    return Token(*inputs[:TOKEN]), inputs[TOKEN:end], inputs[end:]


class _Step(nn.Module):
    """Wraps `StateFilter.step`, so that its inputs and outputs are a flat list of tensors."""

    def __init__(self, model: StateFilter, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Any:
        token, passes, rest = _token(self.model, inputs)
        output, following = self.model.step(token, dict(zip(self.names, rest, strict=True)), *passes)
        return (*output[: len(STEP_FIELDS)], *(following[name] for name in self.names))


class _Attend(nn.Module):
    """Wraps `StateFilter.attend`, so that its inputs and outputs are a flat list of tensors."""

    def __init__(self, model: StateFilter, names: list[str], rows: list[str]) -> None:
        super().__init__()
        self.model, self.names, self.rows = model, names, rows

    def forward(self, *inputs: Tensor) -> Any:
        token, _, (lag, valid, *rest) = _token(self.model, inputs)
        state = dict(zip(self.names, rest[: len(self.names)], strict=True))
        rows = dict(zip(self.rows, rest[len(self.names) :], strict=True))
        output, following, row = self.model.attend(token, state, Past(rows, lag, valid))
        carried = (following[name] for name in self.names)
        return (*output[: len(STEP_FIELDS)], *carried, *(row[name] for name in self.rows))


class _Forecast(nn.Module):
    """Wraps `StateFilter.forecast`, so that its inputs are a flat list of tensors."""

    def __init__(self, model: StateFilter, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, horizon: Tensor, *state: Tensor) -> Any:
        return self.model.forecast(dict(zip(self.names, state, strict=True)), horizon)


class GraphSource(NamedTuple):
    """A module from which a graph is exported, with example inputs."""

    module: nn.Module
    inputs: dict[str, Tensor]  # example inputs in the order of `forward`
    dynamic: dict[str, dict[int, str]]  # names of variable dimensions for each input
    outputs: list[str]


def build_graph(source: GraphSource) -> Graph:
    """Export a module as a graph, and return the graph."""
    name_inputs(source.module, source.inputs)
    with torch.no_grad():
        return export_graph(source.module, source.inputs, source.outputs, dynamic=source.dynamic, prefix="model.")


class _TorchSession:
    """Wraps a torch module (the step or the forecast of a filter) in the interface of an ONNX session."""

    def __init__(self, source: GraphSource) -> None:
        self._source = source

    def get_inputs(self) -> list[Named]:
        return [Named(name) for name in self._source.inputs]

    def get_outputs(self) -> list[Named]:
        return [Named(name) for name in self._source.outputs]

    def run(self, output_names: list[str] | None, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            found = self._source.module(*(torch.from_numpy(inputs[name]) for name in self._source.inputs))
        outputs = dict(zip(self._source.outputs, found, strict=True))
        return [outputs[name].numpy() for name in output_names or outputs]


def graph_sources(model: StateFilter) -> dict[str, GraphSource]:
    """Return the sources of the graphs of a filter. For a linear filter, they are used only for its golden outputs."""
    p = model.observation_size
    state = {name: tensor.detach().clone() for name, tensor in model.init_state(TRACE_BATCH).items()}
    names = list(state)
    batch = {0: "batch"}
    token = {
        "observation": torch.zeros(TRACE_BATCH, p),
        "present": torch.ones(TRACE_BATCH, p),
        "dt": torch.full((TRACE_BATCH,), 0.1),
        "noise_scale": torch.ones(TRACE_BATCH),
    }
    if model.takes_passes():
        token["passes"] = torch.full((TRACE_BATCH,), float(model.inner))
    states = {f"state.{name}": tensor for name, tensor in state.items()}
    fields = list(STEP_FIELDS) + [f"next.{name}" for name in names]
    step_dims = dict.fromkeys([*token, *states], batch)
    sources = {
        "step": GraphSource(_Step(model, names), {**token, **states}, step_dims, fields),
        "forecast": GraphSource(
            _Forecast(model, names),
            {"horizon": torch.linspace(0.1, 1, TRACE_HORIZON), **states},
            {"horizon": {0: "horizon"}, **dict.fromkeys(states, batch)},
            ["forecast_mean", "forecast_covariance"],
        ),
    }
    if "attention" not in modes_of(model):
        return sources
    rows = model.cache_rows()
    pairs = {"lag": torch.full((TRACE_BATCH, TRACE_CACHE), 0.1), "valid": torch.ones(TRACE_BATCH, TRACE_CACHE)}
    caches = {f"cache.{name}": torch.zeros(TRACE_BATCH, TRACE_CACHE, *shape) for name, shape in rows.items()}
    over_cache = {0: "batch", 1: "cache"}
    sources["prefill"] = GraphSource(
        _Attend(model, names, list(rows)),
        {**token, **pairs, **states, **caches},
        {**step_dims, **dict.fromkeys([*pairs, *caches], over_cache)},
        fields + [f"row.{name}" for name in rows],
    )
    return sources


def build_graphs(model: StateFilter) -> dict[str, Graph]:
    """Export the graphs of a filter, and return a mapping from names to graphs. The result is empty for a linear
    filter, because the server compiles its steps from the configuration."""
    if isinstance(model, LinearFilter):
        return {}
    return {name: build_graph(source) for name, source in graph_sources(model).items()}


def bundle_weights(model: StateFilter) -> dict[str, np.ndarray]:
    """Return the tensors of the model, its initial state, and the matrices that map the state to observation units."""
    with torch.no_grad():
        sensor = model.sensor()
        initial = {f"initial.{name}": tensor[0] for name, tensor in model.init_state(1).items()}
        derived = {**initial, "initial.readout_matrix": sensor.matrix, "initial.readout_offset": sensor.offset}
    return {name: tensor.detach().contiguous().numpy() for name, tensor in {**model.state_dict(), **derived}.items()}


def golden_outputs(model: StateFilter, graphs: dict[str, Graph], weights: dict[str, np.ndarray]) -> dict[str, Any]:
    """Record and return golden outputs of a few steps in each mode and of a forecast. The steps include a gap, a
    missing component and an outlier."""
    sessions: dict[str, Any] = {name: open_session(graph, weights) for name, graph in graphs.items()}
    if not graphs:
        sessions = {name: _TorchSession(source) for name, source in graph_sources(model).items()}
    recorder = GoldenRecorder(sessions, weights)
    p, names = model.observation_size, list(model.init_state(1))
    center = weights["initial.readout_offset"]
    scale = np.sqrt(np.diagonal(model.sensor().noise.detach().numpy()))
    rng = np.random.default_rng(0)
    state: dict[str, Source] = {f"state.{n}": Stored(f"initial.{n}") for n in names}
    for i in range(5):
        value = (center + scale * rng.standard_normal(p) * (20 if i == 3 else 1)).astype(np.float32)[None]
        present = np.ones((1, p), np.float32)
        present[0, 0] = 0 if i == 2 else 1
        token = {
            "observation": value * present,
            "present": present,
            "dt": np.array([0.0 if i == 0 else 0.1 * i], np.float32),
            "noise_scale": np.ones(1, np.float32),
        }
        if model.takes_passes():
            token["passes"] = np.array([1 if i == 3 else model.inner], np.float32)
        if i == 0 and "prefill" in sessions:
            pairs = {"lag": np.zeros((1, 1), np.float32), "valid": np.zeros((1, 1), np.float32)}
            caches = {f"cache.{n}": np.zeros((1, 1, *shape), np.float32) for n, shape in model.cache_rows().items()}
            recorder.run("prefill", {**token, **pairs, **state, **caches})
        case = recorder.run("step", {**token, **state}).case
        state = {f"state.{n}": Earlier(case, f"next.{n}") for n in names}
    used = {node.name for node in sessions["forecast"].get_inputs()}
    ahead = {name: source for name, source in state.items() if name in used}
    recorder.run("forecast", {"horizon": np.array([0.1, 1.0], np.float32), **ahead})
    return recorder.document()


def load_batch(path: Path) -> Batch:
    """Load a batch from a file that the training saved in a run directory.

    Raises:
        FileNotFoundError: If the file is missing.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} does not contain {path.name}; create the run with `rfa train filter`")
    arrays = load_file(path)
    return Batch(arrays["times"], arrays["observations"], arrays.get("truth"))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread in a block. More threads would slow down the small steps of a filter."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def export_filter(run: str | Path, out: str | Path, *, name: str | None = None) -> Bundle:
    """Export the run directory of a filter (`rfa train filter`) as a bundle, and return the bundle.

    Args:
        run, out: Run directory, and directory of the bundle.
        name: Name of the bundle. By default, the name of the directory `out`.

    Raises:
        FileNotFoundError: If a file of the run is missing.
        ValueError: If the run is not a filter run.
    """
    source, target = Path(run), Path(out)
    model: StateFilter = load_run_of(source, StateFilter, "a filter", "filter")
    record = json.loads((source / RECORD_FILE).read_text())
    validation = load_batch(source / VALIDATION_FILE)
    with _one_thread():
        calibration = calibrate(model, validation, tuple(sorted({*LEADS, *record.get("leads", [])})))
    graphs, weights = build_graphs(model), bundle_weights(model)
    state = [TensorSpec(key, "float32", tuple(tensor.shape[1:])) for key, tensor in model.init_state(1).items()]
    document = json.loads((source / CONFIG_FILE).read_text())
    return write_bundle(
        target,
        name=name or target.name,
        kind="filter",
        family=document["family"],
        config=document["config"],
        weights=weights,
        graphs=graphs,
        calibration=calibration,
        golden=golden_outputs(model, graphs, weights),
        metrics=record.get("metrics", {}),
        provenance={"data": record["data"], **record.get("provenance", {})},
        state=state,
    )
