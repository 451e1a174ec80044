"""Configuration of the series network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rfa.runtime.text.config import Confidence, LanguageModelConfig, StrictConfig

# Cells between tokens, cells in the window of a token, and the range of lags in cells.
PATCH: Final = 16
WINDOW: Final = 32
REACH: Final = 2048
# Parts of a token other than its window. For each of LAGS bands of lags, [2, 12), [12, 64), …, a token contains the
# differences from a season ago, the season ahead, and four numbers about the lag. It also contains block means and
# numbers about the stream.
DIFFERENCES: Final = 16
AHEAD: Final = 16
BANDS: Final = (2, 12, 64, 512, REACH - DIFFERENCES + 1)  # minus the differences
LAGS: Final = len(BANDS) - 1
# Paths (simple forecasts) in `tokens_numba.py`: for each band of lags, the seasonal path and the same path shifted to
# the stream's level; and the last value.
BASE_PATHS: Final = 2 * LAGS + 1
BLOCK_LENGTHS: Final = (8, 64)
BLOCKS: Final = 32
ABOUT: Final = 13
BASE_FEATURES: Final = 2 * WINDOW + LAGS * (DIFFERENCES + AHEAD + 4) + len(BLOCK_LENGTHS) * BLOCKS + ABOUT
# Paths and features in `averages_numba.py`: number of averaged seasons, lengths of lines and of means, and number of
# last differences.
CYCLES: Final = 4
LINES: Final = (6, 24, 96)
MEANS: Final = (32, 256)
MOVES: Final = 8
PATHS: Final = BASE_PATHS + 2 * LAGS + len(LINES) + len(MEANS) + 1
FEATURES: Final = BASE_FEATURES + 4 * LAGS + 2 * len(LINES) + len(MEANS) + MOVES + 2
# Widths of layers are multiples of this number, because the compiled products work in panels.
MULTIPLE: Final = 32
# Quantiles of a forecast: the nine quantiles of GIFT-Eval, and the ends of 90, 95 and 99 % intervals.
LEVELS: Final = (0.005, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.995)
MEDIAN: Final = LEVELS.index(0.5)


@dataclass(frozen=True)
class SeriesConfig(StrictConfig):
    """Blocks of RFA with memory slots over tokens of a series, and a head that predicts any horizon.

    Attributes:
        d_model, n_layers, n_heads, head_dim, n_slots, mlp_ratio: See `LanguageModelConfig`.
        confidence: See `LanguageModelConfig`. A network with a gate can be trained, but not exported.
        embedding_width: Number of hidden units between the features of a token and d_model.
        head_width, head_inner: Numbers of hidden units of the head.
    """

    d_model: int = 128
    n_layers: int = 3
    n_heads: int = 4
    head_dim: int = 16
    n_slots: int = 8
    mlp_ratio: int = 4
    embedding_width: int = 256
    head_width: int = 192
    head_inner: int = 64
    confidence: Confidence = "none"

    def __post_init__(self) -> None:
        for name in ("d_model", "embedding_width", "head_width", "head_inner"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1 or value % MULTIPLE:
                raise ValueError(f"{name} must be a multiple of {MULTIPLE}, got {value!r}")
        if self.n_slots == 0:
            raise ValueError("n_slots must be >= 1, because a series is processed as a stream, got 0")
        LanguageModelConfig.__post_init__(self.blocks)

    @property
    def blocks(self) -> LanguageModelConfig:
        """Configuration of the blocks, with a separate readout for each mode."""
        return LanguageModelConfig(
            vocab_size=1,
            d_model=self.d_model,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            head_dim=self.head_dim,
            n_slots=self.n_slots,
            mlp_ratio=self.mlp_ratio,
            own_readout=True,
            confidence=self.confidence,
        )
