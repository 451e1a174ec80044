"""The pictures of `rfa bench quality`: perplexity against length, and what a trained SC-RFA has learned.

The model shown is M2 of the first seed: its noises and decay by head and layer, its lag kernels, and its attention

    A = softmax(L) ⊙ E                                                       (RFA, Algorithm 1)

on a passage of the test text. A is read off the attention itself, which returns A · V, for V the identity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from rfa.benchmarks.language.quality.bars import DAMPINGS, Case, cases, losses
from rfa.benchmarks.language.quality.scores import WINDOWS
from rfa.benchmarks.language.quality.table import QualityPlan
from rfa.model.attention.reference import relative_attention
from rfa.model.checkpoint import load_run
from rfa.model.dynamics import Dynamics, decay, variance
from rfa.model.language import LanguageModel
from rfa.model.layers import RobustMixer
from rfa.training.corpus import encode_files, split_files

SHOWN = "M2"
PASSAGE = 192
# Characters of a legend that fit below the curves.
LABEL = 64
# Attention weights over the largest of their row.
SMALLEST_SHOWN = 1e-3
MAPS = ((0, 0), (0, 3), (3, 0), (3, 3))


def draw_quality(plan: QualityPlan, document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what the table has: the lengths, and the model M2 if one is trained; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [draw_lengths(document, folder / "quality-length.png")] if document["runs"] else []
    run = next((job.folder for job in plan.jobs if job.variant == SHOWN and job.is_trained), None)
    if run is None:
        return paths
    model: LanguageModel = load_run(run)
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    tokens = encode_files(tokenizer, split_files(plan.data, "test"))
    passage = torch.from_numpy(np.asarray(tokens[len(tokens) // 2 :][:PASSAGE], np.int64))
    heads = [dynamics.to(torch.float64) for dynamics in layer_dynamics(model)]
    length = max(document["factors"]) * document["context"]
    return [
        *paths,
        draw_noises(heads, folder / "quality-noise.png"),
        draw_kernels(heads, length, folder / "quality-kernels.png"),
        draw_maps(attention_maps(model, passage), folder / "quality-map.png"),
    ]


def _mixer(model: LanguageModel, layer: int) -> RobustMixer:
    mixer = model.get_submodule(f"blocks.{layer}.mixer")
    if not isinstance(mixer, RobustMixer):
        raise ValueError(f"a {model.config.mixer} model has no filter to draw")
    return mixer


@torch.no_grad()
def layer_dynamics(model: LanguageModel) -> list[Dynamics]:
    """What each layer has learned."""
    return [_mixer(model, layer).dynamics() for layer in range(model.config.n_layers)]


@torch.no_grad()
def attention_maps(model: LanguageModel, tokens: Tensor) -> list[np.ndarray]:
    """A of every layer on a passage `[N]`: `[H, N, N]` each, rows are queries."""
    inputs: list[Tensor] = []
    hooks = [
        model.get_submodule(f"blocks.{layer}.mixer_norm").register_forward_hook(
            lambda _module, _inputs, output: inputs.append(output)
        )
        for layer in range(model.config.n_layers)
    ]
    model.mode = "attention"
    try:
        model(tokens[None], with_precision=False)
    finally:
        for hook in hooks:
            hook.remove()
    maps = []
    for layer, x in enumerate(inputs):
        mixer = _mixer(model, layer)
        q, k, _ = mixer.rotated(x, mixer.phase(torch.arange(len(tokens), device=x.device)), "attention")
        identity = torch.eye(len(tokens), device=x.device)[None, :, None].expand(-1, -1, model.config.n_heads, -1)
        weights = relative_attention(
            q, k, identity, mixer.dynamics(), kernel=model.config.kernel, with_precision=False, prior=model.config.prior
        ).out
        maps.append(weights[0].transpose(0, 1).cpu().numpy())
    return maps


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})
    _pyplot().close(figure)
    return path


def groups(found: list[Case]) -> dict[str, list[Case]]:
    """The curves of each panel; M2 is in every one."""
    reference = Case(SHOWN)
    panels: dict[str, list[Case]] = {}
    for case in found:
        if case != reference:
            panels.setdefault(_panel(case.variant), [reference] if reference in found else []).append(case)
    return panels or {"models": [reference]}


def _panel(variant: str) -> str:
    if variant in DAMPINGS:
        return "damping of SC-RFA"
    if variant.endswith("-h8"):
        return "eight heads"
    if variant.startswith(SHOWN):
        return "ablations of SC-RFA"
    if variant.startswith("recipe") and "-both" in variant:
        return "one checkpoint, by recipe"
    starts = {"slots": "slots alone", "both": "attention and slots", "recipe": "recipes"}
    return next((title for start, title in starts.items() if variant.startswith(start)), "models")


def draw_lengths(document: Mapping[str, Any], path: Path) -> Path:
    """Perplexity against the length of the window: mean over the seeds, and from their smallest to their largest."""
    panels = groups(cases(document))
    figure, grid = _pyplot().subplots(
        len(WINDOWS), len(panels), figsize=(4.2 * len(panels), 9.5), sharex=True, squeeze=False, layout="constrained"
    )
    lengths = [factor * document["context"] for factor in document["factors"]]
    for axes_of_kind, windows in zip(grid, WINDOWS, strict=True):
        for axes, (title, curves) in zip(axes_of_kind, panels.items(), strict=True):
            variants = list(dict.fromkeys(case.variant for case in curves if case != Case(SHOWN)))
            for case in curves:
                values = [list(losses(document, case, windows, factor).values()) for factor in document["factors"]]
                known = [(length, np.exp(nats)) for length, nats in zip(lengths, values, strict=True) if nats]
                x = [length for length, _ in known]
                label = shorten(f"{case}: {document['variants'][case.variant]['title']}", LABEL, placeholder=" …")
                colour = "black" if case == Case(SHOWN) else f"C{variants.index(case.variant) % 10}"
                style = ".--" if case.mode == "recurrent" else ".-"
                axes.plot(x, [p.mean() for _, p in known], style, color=colour, linewidth=1.3, label=label)
                low, high = [p.min() for _, p in known], [p.max() for _, p in known]
                axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.set(xscale="log", yscale="log", title=f"{title}, {windows} windows")
            axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
            axes.minorticks_off()
            axes.yaxis.set_major_locator(_ticks())
            axes.yaxis.set_major_formatter("{x:g}")
            axes.grid(alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("perplexity")
    for axes in grid[-1]:
        axes.set_xlabel(f"tokens of a window (trained at {document['context']})")
        axes.legend(fontsize="x-small", frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16), borderaxespad=0)
    return _save(figure, path)


def _ticks() -> Any:
    from matplotlib.ticker import LogLocator

    return LogLocator(base=10, subs=(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8))


def draw_noises(layers: list[Dynamics], path: Path) -> Path:
    """What is learned in each head of each layer, and the decay that is given."""
    with np.errstate(divide="ignore"):
        memory = np.array([1 / layer.mu.numpy() for layer in layers])
    values = {
        "process noise σ²": [layer.sigma2.numpy() for layer in layers],
        "key noise η²": [layer.eta2.numpy() for layer in layers],
        "query noise γ²": [layer.gamma2.numpy() for layer in layers],
        "memory 1/μ, tokens (given)": memory,
        "degrees of freedom ν": [layer.nu.numpy() for layer in layers],
        "inverse temperature τ": [layer.tau.numpy() for layer in layers],
    }
    figure, grid = _pyplot().subplots(2, 3, figsize=(11, 6), layout="constrained")
    for axes, (title, rows) in zip(grid.flat, values.items(), strict=True):
        with np.errstate(divide="ignore"):
            shown = np.log10(np.asarray(rows))
        finite = shown[np.isfinite(shown)]
        middle = (finite.min() + finite.max()) / 2 if finite.size else 0.0
        # A factor of two at least from dark to bright: no picture of rounding errors.
        half = max(np.ptp(finite) / 2 if finite.size else 0.0, math.log10(2) / 2)
        axes.imshow(
            np.clip(shown, middle - half, middle + half),
            cmap="viridis",
            aspect="auto",
            vmin=middle - half,
            vmax=middle + half,
        )
        for (layer, head), exponent in np.ndenumerate(shown):
            text = "∞" if exponent == math.inf else f"{10**exponent:.3g}"
            colour = "white" if exponent < middle else "black"
            axes.text(head, layer, text, ha="center", va="center", fontsize=9, color=colour)
        axes.set(title=title, xlabel="head, from slow to fast", ylabel="layer")
        axes.set_xticks(range(shown.shape[1]))
        axes.set_yticks(range(shown.shape[0]))
    return _save(figure, path)


def draw_kernels(layers: list[Dynamics], longest: int, path: Path) -> Path:
    """E(lag), V(lag) and the bias log P(lag) of every head: a column a quantity, a row a layer."""
    lag = torch.from_numpy(np.unique(np.round(np.geomspace(1, longest, 200)))).to(torch.float64)
    figure, grid = _pyplot().subplots(
        len(layers), 3, figsize=(11, 2.4 * len(layers)), sharex=True, squeeze=False, layout="constrained"
    )
    for row, (axes_of_layer, layer) in enumerate(zip(grid, layers, strict=True)):
        spread = variance(layer, lag)
        curves = {"E": decay(layer.mu, lag), "V": spread, "log P": -torch.log(spread)}
        for axes, (name, heads) in zip(axes_of_layer, curves.items(), strict=True):
            for head, curve in enumerate(heads):
                axes.plot(lag, curve, label=f"head {head}", color=f"C{head}", linewidth=1.3)
            axes.set(xscale="log", title=f"{name}(lag), layer {row}")
            axes.grid(alpha=0.3)
    grid[0, 0].legend(fontsize="small", frameon=False)
    for axes in grid[-1]:
        axes.set_xlabel("lag, tokens")
    return _save(figure, path)


def draw_maps(layers: list[np.ndarray], path: Path) -> Path:
    """A few heads on one passage, each row over its largest weight; what is hidden from a row is white."""
    from matplotlib.colors import LogNorm

    last_layer, last_head = len(layers) - 1, len(layers[0]) - 1
    chosen = list(dict.fromkeys((min(layer, last_layer), min(head, last_head)) for layer, head in MAPS))
    figure, grid = _pyplot().subplots(
        1, len(chosen), squeeze=False, figsize=(3.6 * len(chosen), 4.0), layout="constrained"
    )
    for axes, (layer, head) in zip(grid[0], chosen, strict=True):
        weights = layers[layer][head]
        visible = np.tri(len(weights), dtype=bool)
        shown = np.where(visible, np.maximum(weights / weights.max(axis=1, keepdims=True), SMALLEST_SHOWN), np.nan)
        image = axes.imshow(shown, cmap="viridis", norm=LogNorm(SMALLEST_SHOWN, 1), interpolation="nearest")
        axes.set(title=f"layer {layer}, head {head}", xlabel="key")
    grid[0, 0].set_ylabel("query")
    figure.colorbar(image, ax=grid[0], shrink=0.8, label="weight / largest of the row")
    return _save(figure, path)
