"""Baselines of an AFA layer on the oscillator: the exact Kalman filter, naive predictions, softmax layers."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from rfa.benchmarks.filters.oscillator import kalman
from rfa.training.simulate import OSCILLATOR_DRIFT, STEP, STEPS_PER_MEASUREMENT


def euler_moves(sigma2: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the transition and process noise between two measurements of the Euler-discretised system."""
    move = np.eye(2) + STEP * OSCILLATOR_DRIFT
    f, q = np.eye(2), np.zeros((2, 2))
    for _ in range(STEPS_PER_MEASUREMENT):
        f, q = move @ f, move @ q @ move.T + STEP * sigma2 * np.eye(2)
    return f, q


def kalman_estimates(observations: np.ndarray, sigma2: float, eta2: float) -> tuple[np.ndarray, np.ndarray]:
    """Return estimates of the state `[B, N, 2]` and predictions of the next one."""
    f, q = euler_moves(sigma2)
    means = kalman(observations, f, q, np.full(observations.shape[:2], eta2))
    return means, means @ f.T


class SoftmaxPredictor(nn.Module):
    """`layers` residual layers with one causal softmax head, over embedded observations plus position embeddings."""

    embedding: Tensor
    position: Tensor

    def __init__(self, observation_size: int, *, d_model: int, layers: int, length: int) -> None:
        super().__init__()
        basis, _ = torch.linalg.qr(torch.randn(d_model, observation_size))
        self.register_buffer("embedding", basis)
        rates = length ** -(torch.arange(d_model // 2) / (d_model // 2))
        phase = torch.arange(length)[:, None] * rates
        self.register_buffer("position", torch.cat([phase.sin(), phase.cos()], dim=-1) / math.sqrt(d_model / 2))
        heads = (nn.MultiheadAttention(d_model, 1, batch_first=True) for _ in range(layers))
        self.heads = nn.ModuleList(heads)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, observations: Tensor, times: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the prediction of the next observation for `[B, N, P]`, and the weights `[B, N, N]` of every layer."""
        length = observations.shape[1]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        x, weights = observations @ self.embedding.T + self.position[:length], []
        for head in self.heads:
            mixed, weight = head(x, x, x, attn_mask=hidden)
            x = x + mixed
            weights.append(weight)
        return self.output(x) @ self.embedding, weights
