"""The papers' pictures: `python -m rfa.benchmarks.papers.pictures --data CORPUS [--runs DIR]`.

Trains a small model for each of B1, B2, M1, M2, and M2 from two diffusive starts, and writes
results/papers-pictures.json and docs/figures/paper-{kernels,spectra,aggregation,noises,transition,maps}.png. Runs that
are in DIR are not trained again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.figures import MANY, no_display, panels, save
from rfa.benchmarks.papers.pictures.kernels import draw_aggregation, draw_kernels, draw_spectra
from rfa.benchmarks.papers.pictures.maps import draw_maps
from rfa.benchmarks.papers.pictures.training import MODELS, SIZES, STEPS, trained
from rfa.measured import origin
from rfa.training.corpus import prepare_corpus

# Tokens of the maps: eight windows of training, as in the paper.
WINDOWS = 8
SHOWN = {"gamma2": "γ²", "eta2": "η²", "steady": "σ²/2μ", "nu_over_d": "ν/D", "tau": "τ"}


def curves(records: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values `[steps, H]`, NaN where undefined."""
    values = [[np.nan if value is None else value for value in record[name]] for record in records]
    return np.array([record["step"] for record in records]), np.array(values)


def draw_noises(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the noises of the last layer of M1 and M2 over training, a curve per head (figures 8 and 9)."""
    figure, grid = panels(2, len(SHOWN), (12, 4.4), sharex=True)
    for row, model in zip(grid, ("M1", "M2"), strict=True):
        for axes, (name, label) in zip(row, SHOWN.items(), strict=True):
            steps, values = curves(found[model]["noises"], name)
            for head, colour in enumerate(_colours(values.shape[1])):
                axes.plot(steps, values[:, head], color=colour, linewidth=1, label=f"head {head + 1}")
            axes.set(title=f"{model}: {label}")
            axes.title.set_fontsize(8)
    grid[1, 3].legend(fontsize=5, frameon=False, loc="upper left")
    save(figure, path, MANY)


def draw_transition(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw alpha over training from both starts (figure 10), and validation losses (figure 6 a)."""
    starts = [model for model in found if model.startswith("M2")]
    figure, grid = panels(1, len(starts) + 1, (12, 2.8))
    for axes, model in zip(grid[0], starts, strict=False):
        steps, values = curves(found[model]["noises"], "alpha")
        for head, colour in enumerate(_colours(values.shape[1])):
            axes.plot(steps, values[:, head], color=colour, linewidth=1)
        axes.axhline(0, color="0.6", linewidth=0.8, linestyle=":")
        axes.set(title=f"{model}: α", xlabel="step")
    for model, one in found.items():
        rows = one["validation"]
        grid[0, -1].plot([row["step"] for row in rows], [row["loss"] for row in rows], linewidth=1.2, label=model)
    grid[0, -1].set(title="validation loss", xlabel="step", ylabel="nats per token")
    grid[0, -1].legend(fontsize=6, frameon=False)
    save(figure, path, MANY)


def _colours(heads: int) -> Any:
    return no_display().get_cmap("viridis")(np.linspace(0, 0.95, heads))


def summary(name: str, one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a model: its last loss, and heads with alpha > 0 at the start and the end."""
    row: dict[str, Any] = {"model": name, "validation_loss": one["validation"][-1]["loss"]}
    if one["noises"]:
        _, alpha = curves(one["noises"], "alpha")
        row |= {
            "heads_with_decay": int(np.isfinite(alpha[0]).sum()),
            "integrative_at_start": int((alpha[0] > 0).sum()),
            "integrative_at_end": int((alpha[-1] > 0).sum()),
        }
    return row


def main() -> None:
    options = parser(__doc__, "papers-pictures", needs_data=True, has_figures=True)
    options.add_argument("--runs", type=Path, default=Path("runs") / "pictures", help="folder of the trained models")
    options.add_argument("--steps", type=int, default=STEPS)
    given = options.parse_args()
    torch.set_num_threads(1)
    with tqdm(total=given.steps * len(MODELS), unit="step", disable=None) as bar:
        found = {name: trained(name, given.steps, given.data, given.runs, bar.update) for name in MODELS}
    records = {name: one for name, (_, one) in found.items()}
    draw_kernels(given.figures / "paper-kernels.png")
    draw_spectra(given.figures / "paper-spectra.png")
    draw_aggregation(given.figures / "paper-aggregation.png")
    draw_noises(records, given.figures / "paper-noises.png")
    draw_transition(records, given.figures / "paper-transition.png")
    size = next(iter(found.values()))[0].config.vocab_size
    valid = prepare_corpus(given.data, given.runs / "corpus", size).tokens("valid")
    tokens = torch.from_numpy(np.asarray(valid[: WINDOWS * SIZES["context"]], np.int64))
    shown = {name: model for name, (model, _) in found.items() if name in ("B1", "B2", "M1", "M2")}
    draw_maps(shown, tokens, given.figures / "paper-maps.png")
    document = {
        **origin("python -m rfa.benchmarks.papers.pictures --data CORPUS"),
        "plan": {"steps": given.steps, **SIZES},
        "rows": [summary(name, one) for name, one in records.items()],
        "curves": records,
    }
    finish("papers-pictures", given.out, document)


if __name__ == "__main__":
    main()
