"""A vehicle steered through waypoints in noise and outliers: `python -m rfa.benchmarks.papers.control`.

Writes results/papers-control.json, and in docs/figures paper-control.png and the animation paper-control.gif. Where
cvxpy is installed, its quadratic program solves the first plan too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.figures import GROUND, no_display, panels, plain, save
from rfa.benchmarks.papers.control.closed_form import Controller
from rfa.benchmarks.papers.control.vehicle import PILOTS, Course, Pilot, Run, drive, next_waypoints, scores
from rfa.measured import origin

VEHICLES, SEED = 200, 1
QP_STEPS = (60, 120, 240)
SHOWN: tuple[Pilot, ...] = ("kalman", "robust")
COLOURS = {"truth": "0.5", "robust": "C0", "kalman": "C3", "measurement": "C1"}
LIMITS = {"xlim": (-4, 28), "ylim": (-11, 11), "aspect": "equal"}
# Of the animation.
FRAME_PIXELS, FRAME_COLOURS, FRAME_MS, TRAIL = 480, 12, 80, 60


def plan_rows(course: Course) -> list[dict[str, Any]]:
    """Return cost and time of the first plan, in closed form and by cvxpy if it is installed."""
    controller, given, start = Controller(course.plant), next_waypoints(course, 0.0), np.zeros(4)
    began, repeats = time.perf_counter(), 200
    for _ in range(repeats):
        plan = controller.plan(start, given)
        plan.control(0.0)
    best = float(plan.cost)
    rows: list[dict[str, Any]] = [
        {"method": "closed form", "excess": 0.0, "milliseconds": 1e3 * (time.perf_counter() - began) / repeats}
    ]
    if find_spec("cvxpy"):
        from rfa.benchmarks.papers.control.rival import solve

        for steps in QP_STEPS:
            solve(controller, start, given, steps)  # imports and caches
            found = solve(controller, start, given, steps)
            rows.append(
                {
                    "method": f"cvxpy, {steps} steps",
                    "excess": found.cost / best - 1,
                    "milliseconds": 1e3 * found.seconds,
                }
            )
    return rows


def draw(course: Course, runs: Mapping[Pilot, Run], path: Path) -> None:
    """Draw the first vehicle of each pilot but the one that knows the truth."""
    shown = [pilot for pilot in PILOTS if pilot != "truth"]
    figure, grid = panels(1, len(shown), (10, 2.9))
    for axes, pilot in zip(grid[0], shown, strict=True):
        run = runs[pilot]
        axes.plot(*run.measurements[:, 0].T, ".", color="0.7", markersize=2)
        axes.plot(*runs["truth"].states[:, 0, :2].T, color=COLOURS["truth"], linewidth=0.8, linestyle="--")
        axes.plot(*run.states[:, 0, :2].T, color=COLOURS[pilot], linewidth=1.2)
        axes.plot(*np.array(course.waypoints).T, "k+", markersize=7)
        axes.set(title=f"steered by: {pilot}", **LIMITS)
    save(figure, path)


def animate(course: Course, runs: Mapping[Pilot, Run], path: Path) -> None:
    """Draw the robust and the Kalman pilot over time, with the plan ahead of the robust one."""
    pyplot = no_display()
    figure, axes = pyplot.subplots(figsize=(FRAME_PIXELS / 100, FRAME_PIXELS / 140))
    figure.set_facecolor(GROUND)
    frames = []
    for i in range(1, course.steps + 1, 2):
        axes.clear()
        plain(axes)
        axes.plot(*np.array(course.waypoints).T, "k+", markersize=7)
        for pilot in SHOWN:
            run, first = runs[pilot], max(0, i - TRAIL)
            axes.plot(*run.states[first : i + 1, 0, :2].T, color=COLOURS[pilot], linewidth=1.4, label=pilot)
            axes.plot(*run.states[i, 0, :2], "o", color=COLOURS[pilot], markersize=5)
        run = runs["robust"]
        axes.plot(*run.plans[min(i, course.steps - 1)].T, color=COLOURS["robust"], linewidth=0.7, linestyle=":")
        axes.plot(*run.measurements[max(0, i - 8) : i, 0].T, ".", color="0.6", markersize=3, label="measured")
        axes.legend(fontsize=6, frameon=False, loc="upper right", ncols=3)
        axes.set(**LIMITS)
        figure.canvas.draw()
        frames.append(Image.fromarray(np.asarray(figure.canvas.buffer_rgba())[..., :3]))
    pyplot.close(figure)
    palette = frames[len(frames) // 2].quantize(FRAME_COLOURS)
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    path.parent.mkdir(parents=True, exist_ok=True)
    small[0].save(path, save_all=True, append_images=small[1:], duration=FRAME_MS, loop=0, optimize=True)


def main() -> None:
    options = parser(__doc__, "papers-control", has_figures=True)
    options.add_argument("--vehicles", type=int, default=VEHICLES)
    given = options.parse_args()
    course = Course()
    rows = []
    for share in (0.0, course.outliers):
        for pilot in PILOTS:
            case = replace(course, outliers=share)
            rows.append({"outliers": share, "pilot": pilot, **scores(case, drive(case, pilot, given.vehicles, SEED))})
    document = {
        **origin("python -m rfa.benchmarks.papers.control"),
        "vehicles": given.vehicles,
        "rows": rows,
        "plans": plan_rows(course),
    }
    runs = {pilot: drive(course, pilot, 1, SEED) for pilot in PILOTS}
    draw(course, runs, given.figures / "paper-control.png")
    animate(course, runs, given.figures / "paper-control.gif")
    finish("papers-control", given.out, document)


if __name__ == "__main__":
    main()
