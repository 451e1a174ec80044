"""Compare the outputs of a bundle with those of the torch model that is rebuilt from it."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rfa.runtime.bundle.bundle import Bundle, open_bundle

STEPS = 1000
# Limit on the largest difference, relative to the largest magnitude of the output or 1.
LIMIT = 1e-5
# Position of one compared stream, because phases grow with the position.
FAR_POSITION = 1_000_000
PREFIX = 64
CONTINUATION = 16
SEED = 0


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison: the largest relative difference that was found, and the largest difference that is
    allowed."""

    what: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.error <= self.limit  # a NaN is never within the limit


def compare_with_torch(bundle: Bundle) -> list[Comparison]:
    """Compare the outputs of a bundle with those of the torch model that is rebuilt from it, and return the
    comparisons. This runs in the current process."""
    import torch

    from rfa.model.loading import model_of

    torch.set_num_threads(1)
    model = model_of(bundle)
    compare = {"lm": _compare_language, "filter": _compare_filter, "series": _compare_series}[bundle.kind]
    with torch.no_grad():
        return list(compare(bundle, model))


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute difference, divided by the largest magnitude of the expected values or by 1,
    whichever is larger. Return infinity if the shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    return float(np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0)) / scale


def compiled_sessions(bundle: Bundle) -> dict[str, Any]:
    """Return sessions that compute the golden outputs of a bundle. The result is empty if the bundle has graphs, or
    numba is not installed."""
    if bundle.manifest.graphs or importlib.util.find_spec("numba") is None:
        return {}
    if bundle.kind == "filter":
        from rfa.runtime.filters import golden
        from rfa.runtime.filters.filter import FilterRuntime

        return dict(golden.compiled_sessions(FilterRuntime(bundle)))
    from rfa.runtime.series.decoder_numba import SeriesDecoder
    from rfa.runtime.series.session import NETWORK, SeriesSession

    return {NETWORK: SeriesSession(SeriesDecoder.of(bundle.weights()))}


def _run(session: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [node.name for node in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


class _Largest:
    """Records the largest difference of each output over several comparisons."""

    def __init__(self) -> None:
        self.errors: dict[str, float] = {}

    def add(self, name: str, actual: np.ndarray, expected: Any) -> None:
        error = difference(actual, expected.numpy())
        # Not max(), because it would ignore a NaN.
        if not error <= self.errors.get(name, 0.0):
            self.errors[name] = error
        self.errors.setdefault(name, 0.0)

    def comparisons(self, title: str) -> Iterator[Comparison]:
        for name, error in sorted(self.errors.items()):
            yield Comparison(f"{title}: {name}", error, LIMIT)


def _compare_language(bundle: Bundle, model: Any) -> Iterator[Comparison]:
    tokens = np.random.default_rng(SEED).integers(0, model.config.vocab_size, (2, STEPS))
    if "recurrent" in model.config.modes:
        yield from _language_steps(bundle, model, tokens)
        yield from _language_prefill(bundle, model, tokens[:, :PREFIX])
    yield from _language_attention(bundle, model, tokens[:1, : PREFIX + CONTINUATION])
    yield from _language_constants(bundle, model)


def _compare_series(bundle: Bundle, model: Any) -> Iterator[Comparison]:
    """Compare the compiled network with the torch model on the golden stream.

    Tokens before the end of a patch are also compared. They read the memory slots without changing them.
    """
    import torch

    from rfa.export.series_export import GOLDEN_LEADS
    from rfa.model.series.network import LeadQueries
    from rfa.runtime.series.config import PATCH, PATHS
    from rfa.runtime.series.decoder_numba import SeriesDecoder
    from rfa.runtime.series.session import SeriesSession

    (case,) = bundle.golden["cases"]
    inputs = {
        name: np.array(source["values"], source["dtype"]).reshape(source["shape"])
        for name, source in case["inputs"].items()
    }
    (found,) = SeriesSession(SeriesDecoder.of(bundle.weights())).run(None, inputs)
    largest = _Largest()
    whole: list[int] = []
    for i, lag in enumerate(inputs["lags"].tolist()):
        rows = [*whole, i]
        ends = PATCH * np.arange(1, len(rows) + 1)
        ends[-1] = PATCH * len(whole) + lag
        asked = torch.from_numpy(inputs["asked"][rows])[None]
        leads = torch.from_numpy(np.tile(GOLDEN_LEADS, (1, len(rows), 1)))
        reference_values = model(
            torch.from_numpy(inputs["tokens"][rows])[None],
            torch.from_numpy(ends)[None],
            LeadQueries(leads, asked[..., :PATHS]),
        )
        largest.add("quantiles", np.arcsinh(found[i]), reference_values[0, -1])
        if lag == PATCH:
            whole.append(i)
    yield from largest.comparisons("stream")


def _carried(state: Any) -> dict[str, Any]:
    """Return the parts of a recurrent state that the graphs read and return."""
    return {name: part for name, part in state._asdict().items() if name != "position"}


def _two_passes(model: Any) -> dict[str, np.ndarray]:
    """Return the graph input `passes`, with a different number of passes for each of the two rows. Return an empty
    dictionary if the model has K = 1."""
    return {"passes": np.array([model.config.inner, 1])} if model.config.takes_passes else {}


def _language_steps(bundle: Bundle, model: Any, tokens: np.ndarray) -> Iterator[Comparison]:
    """Compare single steps of two streams with those of the torch model. Each of the two runtimes continues from its
    own states. The second stream starts at a large position."""
    import torch

    session, largest = bundle.session("step"), _Largest()
    chosen, passes = _two_passes(model), None
    if model.config.window:  # with a window, the torch model uses one number of passes for all streams
        chosen = {name: np.full_like(values, model.passes) for name, values in chosen.items()}
    elif chosen:
        passes = torch.from_numpy(chosen["passes"])
    state = model.init_state(2)._replace(position=torch.tensor([0, FAR_POSITION]))
    carried = {name: part.contiguous().numpy() for name, part in _carried(state).items()}
    noise = np.zeros((2, model.config.n_heads, 2 * model.config.head_dim), np.float32)
    noise[1] = np.random.default_rng(SEED).normal(size=noise.shape[1:])
    for i in range(tokens.shape[1]):
        position = state.position.numpy()
        output, state = model.step(torch.from_numpy(tokens[:, i]), state, torch.from_numpy(noise), passes)
        found = _run(
            session,
            {"token": tokens[:, i], "position": position, "noise": noise, **chosen, **carried},
        )
        carried = {name: found[f"next_{name}"] for name in carried}
        for name in ("logits", "log_precision", "latent"):
            largest.add(name, found[name], getattr(output, name))
        for name, part in _carried(state).items():
            largest.add(name, carried[name], part)
    yield from largest.comparisons(f"one step at a time, compared with torch over {tokens.shape[1]} steps")


def _language_prefill(bundle: Bundle, model: Any, tokens: np.ndarray) -> Iterator[Comparison]:
    """Compare the prefill of rows of different lengths with single steps of the torch model. Padding must have no
    effect."""
    import torch

    session, largest = bundle.session("prefill"), _Largest()
    start = model.init_state(1)
    carried = {name: np.repeat(part.numpy(), 2, axis=0) for name, part in _carried(start).items()}
    lengths = np.array([tokens.shape[1], tokens.shape[1] // 3])
    position, chosen = np.zeros(2, np.int64), _two_passes(model)
    found = _run(session, {"tokens": tokens, "length": lengths, "position": position, **chosen, **carried})
    for row, length in enumerate(lengths):
        state = start
        if chosen:
            model.passes = int(chosen["passes"][row])
        for token in tokens[row, :length]:
            output, state = model.step(torch.tensor([token]), state)
        for name in ("logits", "log_precision", "latent"):
            largest.add(name, found[name][row : row + 1], getattr(output, name))
        for name, part in _carried(state).items():
            largest.add(name, found[f"next_{name}"][row : row + 1], part)
    model.passes = model.config.inner
    yield from largest.comparisons("prefill, compared with torch step by step")


def _language_attention(bundle: Bundle, model: Any, tokens: np.ndarray) -> Iterator[Comparison]:
    """Process a prompt and then single tokens with a cache, and compare with one parallel pass of the torch model."""
    import torch

    session, largest = bundle.session("attention"), _Largest()
    model.mode = "attention"
    parallel = model(torch.from_numpy(tokens))
    config = model.config
    capacity = tokens.shape[1] + 7  # empty rows must have no effect
    keys = np.full((1, config.n_layers, config.n_heads, capacity, 2 * config.head_dim), 3.0, np.float32)
    values = keys.copy()
    silent = np.zeros((1, config.n_heads, 2 * config.head_dim), np.float32)
    done = 0
    for count in (PREFIX, *(1,) * CONTINUATION):
        piece = tokens[:, done : done + count]
        position = np.array([done])
        found = _run(session, {"tokens": piece, "position": position, "keys": keys, "values": values, "noise": silent})
        keys[..., done : done + count, :] = found["new_keys"]
        values[..., done : done + count, :] = found["new_values"]
        done += count
        largest.add("logits", found["logits"], parallel.logits[:, done - 1])
        largest.add("log_precision", found["log_precision"], parallel.log_precision[:, done - 1])
    yield from largest.comparisons("attention over a cache, compared with the parallel pass of torch")


def _language_constants(bundle: Bundle, model: Any) -> Iterator[Comparison]:
    """Compare the constants of the compiled decoder with those that the torch model computes."""
    from rfa.model.decoder_constants import decoder_constants

    found = bundle.constants()
    if found is None:
        return
    largest = _Largest()
    for name, expected in decoder_constants(model).items():
        largest.add(name, found.get(name, np.empty(0)), expected)
    yield from largest.comparisons("decoder.safetensors against torch")


def _compare_filter(bundle: Bundle, model: Any) -> Iterator[Comparison]:
    """Compare single steps with those of the torch model. Each of the two runtimes continues from its own states. Times
    are irregular, and one value in ten is missing."""
    import torch

    from rfa.model.state_filter import Token

    session = bundle.session("step") if bundle.manifest.graphs else compiled_sessions(bundle)["step"]
    largest, (size, _) = _Largest(), bundle.filter.sizes
    generator = np.random.default_rng(SEED)
    state = model.init_state(2)
    carried = {name: tensor.numpy() for name, tensor in state.items()}
    for _ in range(STEPS):
        token = {
            "observation": generator.normal(size=(2, size)).astype(np.float32),
            "present": (generator.random((2, size)) > 0.1).astype(np.float32),
            "dt": generator.uniform(0.05, 0.2, 2).astype(np.float32),
            "noise_scale": np.ones(2, np.float32),
        }
        token["observation"] *= token["present"]
        output, state = model.step(Token(*(torch.from_numpy(array) for array in token.values())), state)
        if bundle.filter.takes_passes():
            token["passes"] = np.full(2, model.inner, np.float32)
        found = _run(session, {**token, **{f"state.{name}": array for name, array in carried.items()}})
        carried = {name: found[f"next.{name}"] for name in carried}
        # A graph returns a tensor once, even if it is also part of the next state.
        for name in found.keys() & set(output._fields):
            largest.add(name, found[name], getattr(output, name))
        for name, expected in state.items():
            largest.add(f"state.{name}", carried[name], expected)
    yield from largest.comparisons(f"one step at a time, compared with torch over {STEPS} steps")


def main() -> None:
    """Print the comparisons as a JSON list. `verify_bundle` runs this as `python -m rfa.export.comparison BUNDLE`."""
    json.dump([asdict(comparison) for comparison in compare_with_torch(open_bundle(sys.argv[1]))], sys.stdout)


if __name__ == "__main__":
    main()
