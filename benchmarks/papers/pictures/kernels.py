"""Kernels of the lag (RFA figures 3 to 5) and what they aggregate (figure 1)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rfa.benchmarks.figures import MANY, panels, save
from rfa.model.dynamics import Dynamics, banded_decay, banded_frequencies, full_frequencies, variance

LAGS = torch.linspace(0, 60, 241, dtype=torch.float64)
GAMMA2 = 0.1
# (steady process variance, eta²): alpha = eta² - steady is negative, then positive.
REGIMES = {"diffusive": ((1.0, 0.05), (0.5, 0.05), (0.2, 0.05)), "integrative": ((0.05, 0.2), (0.05, 0.5), (0.05, 1.0))}
DECAYS = (0.0, 0.01, 0.03, 0.1, 0.3)


def precision(mu: float, steady: float, eta2: float) -> np.ndarray:
    """Return P at LAGS; without decay `steady` is the process noise per unit of time."""
    values = (mu, 2 * mu * steady if mu else steady, eta2, GAMMA2, 4.0, 1.0)
    mu_, sigma2, eta, gamma2, nu, tau = (torch.tensor([value], dtype=torch.float64) for value in values)
    dynamics = Dynamics(mu_, torch.zeros(1, 1, dtype=torch.float64), sigma2, eta, gamma2, nu, tau)
    found: np.ndarray = 1 / variance(dynamics, LAGS)[0].numpy()
    return found


def draw_kernels(path: Path) -> None:
    """Draw P and log P of both regimes (figure 3) and by damping (figure 4)."""
    figure, grid = panels(2, 3, (10, 4.6))
    for column, name in enumerate(REGIMES):
        for steady, eta2 in REGIMES[name]:
            p = precision(0.05, steady, eta2)
            for axes, values in zip(grid[:, column], (p, np.log(p)), strict=True):
                axes.plot(LAGS, values, linewidth=1.2, label=f"σ̃² = {steady:g}, η² = {eta2:g}")
        grid[0, column].set(title=f"{name}: gate P")
        grid[1, column].set(title=f"{name}: bias log P", xlabel="lag")
        grid[0, column].legend(fontsize=6, frameon=False)
    for mu in DECAYS:
        p = precision(mu, 0.5 if mu else 0.02, 0.05)
        for axes, values in zip(grid[:, 2], (p, np.log(p)), strict=True):
            axes.plot(LAGS, values, linewidth=1.2, label=f"μ = {mu:g}")
    grid[0, 2].set(title="damping: P")
    grid[1, 2].set(title="damping: log P", xlabel="lag")
    grid[0, 2].legend(fontsize=6, frameon=False)
    save(figure, path, MANY)


def draw_spectra(path: Path, heads: int = 8, dims: int = 16) -> None:
    """Draw the eigenvalues -mu + i omega of each head (figure 5, b = 1)."""
    figure, grid = panels(1, 2, (7, 2.8))
    decays = banded_decay(heads, dims, damping=1.0, zero_fraction=0.0)
    banks = {"full frequencies": full_frequencies(heads, dims), "banded frequencies": banded_frequencies(heads, dims)}
    for axes, (title, bank) in zip(grid[0], banks.items(), strict=True):
        for head in range(heads):
            rates = np.full(dims, -float(decays[head]))
            axes.plot(rates, bank[head], ".", markersize=3, label=f"head {head + 1}")
        axes.set(title=title, xlabel="−μ", ylabel="ω", xscale="symlog", yscale="symlog")
        axes.set_xscale("symlog", linthresh=1e-3)
        axes.set_yscale("symlog", linthresh=1e-3)
    save(figure, path)


def pulled(z: np.ndarray, row: int, rate: complex, sigma2: float, eta2: float) -> tuple[np.ndarray, np.ndarray]:
    """Return measurements `[N]` at times 0, 1, … carried to that of a row, and their variances by the two-sided V."""
    lag = row - np.arange(len(z))
    growth = np.exp(2 * rate.real * lag)
    variances = sigma2 * np.abs(growth - 1) / (-2 * rate.real) + eta2 * growth
    return np.exp(rate * lag) * z, variances


def draw_aggregation(path: Path) -> None:
    """Draw a path in the plane, what measurements say of five of its points, and the mean and deviation of each."""
    rate, sigma2, eta2, length = complex(-0.04, 0.25), 0.01, 0.09, 40
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(2, length, 2)) @ np.array([1, 1j]) / np.sqrt(2)
    x = [3 + 0j]
    for w in noise[0, 1:]:
        x.append(np.exp(rate) * x[-1] + np.sqrt(sigma2 * -np.expm1(2 * rate.real) / (-2 * rate.real)) * w)
    z = np.array(x) + np.sqrt(eta2) * noise[1]
    figure, grid = panels(1, 2, (7, 3.4))
    angle = np.exp(2j * np.pi * np.linspace(0, 1, 61))
    for axes, title in zip(grid[0], ("earlier measurements", "later measurements"), strict=True):
        axes.plot(np.real(x), np.imag(x), color="black", linewidth=0.8)
        for number, row in enumerate(range(6, length - 3, 7)):
            chosen = slice(0, row + 1) if title.startswith("earlier") else slice(row, length)
            estimates, variances = (part[chosen] for part in pulled(z, row, rate, sigma2, eta2))
            mean = np.sum(estimates / variances) / np.sum(1 / variances)
            circle = mean + angle / np.sqrt(np.sum(1 / variances))
            axes.plot(estimates.real, estimates.imag, ".", color=f"C{number}", markersize=2)
            axes.plot(circle.real, circle.imag, color=f"C{number}", linewidth=1)
        axes.set(title=title, aspect="equal", xlim=(-4, 4), ylim=(-4, 4))
    save(figure, path, MANY)
