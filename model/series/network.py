"""Series network: blocks of RFA over the tokens of a series, and an output layer for quantiles at any horizon.

The inputs of the output layer are the state h of a token and the features F of a horizon, which are its distance and
the simple forecasts at this horizon, called paths. It returns quantiles of asinh((y - c) / s), with the centre c and
the scale s of the token:

    u = gelu(W gelu(A h + B F) + b)           median = paths · w(h) + a · u           median ± cumulated softplus(…)

Quantiles never cross. The cost does not depend on the horizon.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfa.model.blocks import Block
from rfa.model.layers import LayerState, RobustMixer
from rfa.model.mixing import ModeNorm
from rfa.runtime.series.config import FEATURES, LEVELS, MEDIAN, PATCH, PATHS, SeriesConfig
from rfa.runtime.series.leads import FARTHEST, LEAD_NUMBERS, lead_table
from rfa.runtime.text.config import Mode

# Initial distance between quantiles, in units of the scale.
FIRST_GAP = 0.25


class LeadQueries(NamedTuple):
    """Horizons for which tokens make forecasts.

    Args:
        leads: Horizons in cells, `[B, N, K]` >= 1.
        paths: Simple forecasts at the horizons (`averages_numba.describe`), `[B, N, K, P]`.
    """

    leads: Tensor
    paths: Tensor


class SeriesHead(nn.Module):
    """Output layer. Given tokens with states `[B, N, d]` and K horizons for each token, it returns the quantiles
    `[B, N, K, Q]`."""

    lead_table: Tensor

    def __init__(self, config: SeriesConfig) -> None:
        super().__init__()
        self.state = nn.Linear(config.d_model, config.head_width)
        self.asked = nn.Linear(PATHS + LEAD_NUMBERS, config.head_width, bias=False)
        self.inner = nn.Linear(config.head_width, config.head_inner)
        self.out = nn.Linear(config.head_inner, len(LEVELS))
        self.follow = nn.Linear(config.d_model, PATHS)
        self.register_buffer("lead_table", torch.from_numpy(lead_table()), persistent=False)
        with torch.no_grad():
            self.out.weight.mul_(0.1)
            self.out.bias.fill_(math.log(math.expm1(FIRST_GAP)))
            self.out.bias[MEDIAN] = 0
            self.follow.weight.zero_()
            self.follow.bias.zero_()

    def forward(self, h: Tensor, asked: LeadQueries) -> Tensor:
        far = self.lead_table[asked.leads.clamp(1, FARTHEST)]
        hidden, weights = self.of_states(h)
        features = torch.cat([asked.paths, far], -1)
        return self.ahead(hidden[..., None, :], weights[..., None, :], features)

    def of_states(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the part of the hidden units that depends only on a state, `[..., W]`, and the weights of the paths,
        `[..., P]`.
        """
        # This is computed in float32 even under autocast.
        with torch.autocast(h.device.type, enabled=False):
            weights = self.follow(h.float())
        return self.state(h), weights

    def ahead(self, hidden: Tensor, weights: Tensor, features: Tensor) -> Tensor:
        """Return the quantiles at horizons, `[..., Q]`.

        Args:
            hidden, weights: Result of `of_states`.
            features: Features of the horizons, `[..., QUERY_FEATURES]`.
        """
        hidden = self.inner(F.gelu(hidden + self.asked(features)))
        with torch.autocast(features.device.type, enabled=False):
            raw = self.out(F.gelu(hidden.float()))
            along = (features[..., :PATHS] * weights).sum(-1, keepdim=True)
            median = along + raw[..., MEDIAN : MEDIAN + 1]
            below = median - F.softplus(raw[..., :MEDIAN]).flip(-1).cumsum(-1).flip(-1)
            above = median + F.softplus(raw[..., MEDIAN + 1 :]).cumsum(-1)
            return torch.cat([below, median, above], -1)


class SeriesNetwork(nn.Module):
    """Network that maps the tokens of series to quantiles at horizons, in one of two modes."""

    def __init__(self, config: SeriesConfig) -> None:
        super().__init__()
        self.config = config
        self.mode: Mode = "recurrent"
        self.embedding = nn.Sequential(
            nn.Linear(FEATURES, config.embedding_width),
            nn.GELU(),
            nn.Linear(config.embedding_width, config.d_model),
        )
        self.blocks = nn.ModuleList(Block(config.blocks) for _ in range(config.n_layers))
        self.norm = ModeNorm(config.d_model, is_own=True)
        self.head = SeriesHead(config)

    def forward(self, tokens: Tensor, ends: Tensor, asked: LeadQueries) -> Tensor:
        """Return the quantiles of asinh((y - c) / s) at the horizons of every token, `[B, N, K, Q]`.

        Args:
            tokens: Tokens of the series, `[B, N, FEATURES]`.
            ends: Number of cells up to each token, `[B, N]`, non-decreasing.
            asked: Horizons for each token, with their paths.
        """
        states: Tensor = self.head(self.states(tokens, ends), asked)
        return states

    def states(self, tokens: Tensor, ends: Tensor) -> Tensor:
        """Return the normalised residual stream after the blocks, `[B, N, d]`."""
        x = self._embedded(tokens)
        positions = ends.to(torch.float64) / PATCH
        lags = torch.diff(positions, dim=1, prepend=torch.zeros_like(positions[:, :1])).to(torch.float32)
        for block in cast("list[Block]", self.blocks):
            mixer = cast("RobustMixer", block.mixer)
            normed = block.mixer_norm(x, self.mode)
            if self.mode == "attention":
                mixed = mixer.attention(normed, with_precision=False).out
            else:
                means, precisions = mixer.initial_state()
                before = LayerState(means.expand(len(x), *means.shape), precisions.expand(len(x), *precisions.shape))
                mixed = mixer.recurrent(normed, positions, before, lags=lags)[0].out
            x = block.finish(x, mixed, self.mode)
        out: Tensor = self.norm(x, self.mode)
        return out

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Return the residual stream `[B, N, d]`. It is computed in float32, because small changes of smooth series
        would be lost in bfloat16."""
        with torch.autocast(tokens.device.type, enabled=False):
            hidden = self.embedding[0](tokens.float())
        rest: Tensor = self.embedding[1:](hidden)
        return rest
