"""Schema of calibration.json.

Some numbers occur more than once, in the summary or in both modes of a language model. They must be equal.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from rfa.runtime.bundle.documents import Probability, Sha256, Strict, ascending
from rfa.runtime.bundle.held_out import MAX_REACH, MAX_ROWS, MAX_WINDOWS, chance
from rfa.runtime.bundle.token_confidence import reliability

MAX_TABLE = 1_024
ROUNDING = 1e-9
Multiplier = Annotated[float, Field(ge=0, le=1e12)]
Factor = Annotated[float, Field(ge=1e-6, le=1e12)]
Temperature = Annotated[float, Field(ge=0.01, le=100)]
Level = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Score = Annotated[float, Field(ge=-1e12, le=1e12)]
Table = Field(min_length=1, max_length=MAX_TABLE)
NOT_ASCENDING = "must be in ascending order"
Value = TypeVar("Value")


def _check_lengths(document: Strict, *names: str) -> None:
    """Raise ValueError if the named fields differ in length."""
    if len({len(getattr(document, name)) for name in names}) > 1:
        raise ValueError(f"{', '.join(names[:-1])} and {names[-1]} must have the same length")


class StateCalibration(Strict):
    """Calibration of the intervals of the state. `multipliers` are half-widths in standard deviations of the model, one
    per level."""

    source: Annotated[str, Field(max_length=100)]
    multipliers: Annotated[list[Multiplier], Table]
    variance_scale: Multiplier


class ForecastCalibration(Strict):
    """Calibration of the intervals of forecasts. `multipliers` are half-widths in standard deviations of the model, by
    horizon and level."""

    horizons: Annotated[list[Annotated[float, Field(gt=0, le=1e15)]], Table]
    multipliers: Annotated[list[Annotated[list[Multiplier], Table]], Table]
    variance_scale: Annotated[list[Multiplier], Table]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not ascending(self.horizons, is_strict=True):
            raise ValueError(f"horizons {NOT_ASCENDING}")
        _check_lengths(self, "horizons", "multipliers", "variance_scale")
        return self


class AnomalyCalibration(Strict):
    """Distribution of the novelty in the calibration data, given by quantiles and by the scale of the tail beyond the
    last quantile."""

    shares: Annotated[list[Level], Table]
    quantiles: Annotated[list[Score], Table]
    tail_scale: Annotated[float, Field(gt=0, le=1e12)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_lengths(self, "shares", "quantiles")
        if not ascending(self.shares, is_strict=True) or not ascending(self.quantiles, is_strict=False):
            raise ValueError(f"shares and quantiles {NOT_ASCENDING}")
        return self


class ConfidenceCalibration(Strict):
    """Coverage of the 0.9 interval of the next observation, as a function of `surprise`, which contains values of the
    running mean of the novelty."""

    surprise: Annotated[list[Score], Table]
    inside: Annotated[list[Probability], Table]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.surprise) != len(self.inside) or not ascending(self.surprise, is_strict=False):
            raise ValueError("surprise must be in ascending order and have the same length as inside")
        return self


class PrecisionCalibration(Strict):
    """Ratio of the calibrated variance to the variance of the model. It is the product of a function of `gain` and a
    function of `surprise`, which contains values of the running mean of the novelty."""

    gain: Annotated[list[Annotated[float, Field(gt=0, le=1e12)]], Table]
    by_gain: Annotated[list[Factor], Table]
    surprise: Annotated[list[Score], Table]
    by_surprise: Annotated[list[Factor], Table]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name in ("gain", "surprise"):
            grid = getattr(self, name)
            if len(grid) != len(getattr(self, f"by_{name}")) or not ascending(grid, is_strict=True):
                raise ValueError(f"{name} must be in ascending order and have the same length as by_{name}")
        return self


class ModeCalibration(Strict):
    """Calibration of one mode of a filter. `precision` is optional, because it requires data with true states."""

    levels: Annotated[list[Level], Table]
    state: StateCalibration
    forecast: ForecastCalibration
    anomaly: AnomalyCalibration
    confidence: ConfidenceCalibration
    precision: PrecisionCalibration | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not ascending(self.levels, is_strict=True):
            raise ValueError(f"levels {NOT_ASCENDING}")
        for row in (self.state.multipliers, *self.forecast.multipliers):
            if len(row) != len(self.levels) or not ascending(row, is_strict=False):
                raise ValueError("multipliers must be in ascending order, with one for each level")
        return self


class FilterSummary(Strict):
    """Summary of the calibration of a filter, which is repeated in the manifest."""

    levels: list[Level]
    horizons: list[float]
    state_source: str
    variance_scale: dict[Literal["attention", "recurrent"], Multiplier]
    streams: Count
    observations: Count


class FilterCalibration(Strict):
    """Content of calibration.json of a filter. Filters without graphs do not have an attention mode."""

    attention: ModeCalibration | None = None
    recurrent: ModeCalibration
    summary: FilterSummary

    @model_validator(mode="after")
    def _agree(self) -> Self:
        modes = {"recurrent": self.recurrent}
        if self.attention is not None:
            modes["attention"] = self.attention
            for name in ("levels", "forecast.horizons", "state.source"):
                if _at(self.attention, name) != _at(self.recurrent, name):
                    raise ValueError(f"{name} must be equal in both modes")
            if (self.attention.precision is None) != (self.recurrent.precision is None):
                raise ValueError("precision must be calibrated in both modes or in none")
        summary = self.recurrent.levels, self.recurrent.forecast.horizons, self.recurrent.state.source
        if (self.summary.levels, self.summary.horizons, self.summary.state_source) != summary:
            raise ValueError("summary must have the levels, horizons and state_source of the recurrent mode")
        if self.summary.variance_scale != {mode: entry.state.variance_scale for mode, entry in modes.items()}:
            raise ValueError("summary must contain the variance_scale of each mode")
        return self


def _at(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = getattr(found, name)
    return found


class Reliability(Strict):
    """The expected calibration error (ECE), and the bins from which it is computed."""

    ece: Probability
    confidence: Annotated[list[Probability], Table]
    accuracy: Annotated[list[Probability], Table]
    count: Annotated[list[Count], Table]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_lengths(self, "confidence", "accuracy", "count")
        bins = zip(self.count, self.confidence, self.accuracy, strict=True)
        gaps = sum(count * abs(accuracy - confidence) for count, confidence, accuracy in bins)
        if abs(gaps - self.ece * sum(self.count)) > ROUNDING * sum(self.count):
            raise ValueError("ece must equal the value computed from the bins")
        return self


class HeldOutRows(Strict):
    """Confidence of the most probable token at some held-out positions. `right` contains "1" where that token was
    correct, and "0" elsewhere."""

    confidence: Annotated[list[Probability], Field(min_length=1, max_length=MAX_ROWS)]
    right: Annotated[str, Field(pattern=r"^[01]+$", max_length=MAX_ROWS)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_lengths(self, "confidence", "right")
        return self

    def ece(self) -> float:
        """Return the expected calibration error (ECE) at the stored positions."""
        right = np.frombuffer(self.right.encode(), np.uint8) == ord("1")
        return float(reliability(np.array(self.confidence), right)["ece"])


class TokenTails(Strict):
    """Calibrated tail probabilities of tokens. `share` contains the fraction of held-out tokens that have at least the
    surprise in `surprise`. `scale` is the mean excess of the surprises above the last entry."""

    surprise: Annotated[list[Annotated[float, Field(gt=0, le=1e4)]], Table]
    share: Annotated[list[Level], Table]
    scale: Annotated[float, Field(gt=0, le=1e4)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_lengths(self, "surprise", "share")
        if not ascending(self.surprise, is_strict=True) or not ascending(self.share[::-1], is_strict=True):
            raise ValueError("surprise must be strictly increasing, and share strictly decreasing")
        return self


class LanguageMode(Strict):
    """Calibration of one decoding mode. `rows` and `tails` are optional."""

    temperature: Temperature
    nll: Annotated[float, Field(ge=0, le=1e6)]
    nll_uncalibrated: Annotated[float, Field(ge=0, le=1e6)]
    ece_top_uncalibrated: Probability
    top: Reliability
    sampled: Reliability
    rows: HeldOutRows | None = None
    tails: TokenTails | None = None

    @model_validator(mode="after")
    def _holds(self) -> Self:
        if self.rows is not None:
            low, high = chance(self.top.accuracy, self.top.count, len(self.rows.right))
            found = self.rows.ece()
            if not low <= found - self.top.ece <= high:
                raise ValueError(
                    f"top.ece is {self.top.ece:.4f}, but the ECE of the {len(self.rows.right)} stored rows is "
                    f"{found:.4f}; the difference is outside the range that chance allows, {low:+.4f} to {high:+.4f}"
                )
        return self


class ByMode(Strict, Generic[Value]):
    """A value for each decoding mode. `recurrent` is None for a model without memory slots."""

    attention: Value
    recurrent: Value | None = None


class HeldOutTokens(Strict):
    """Tokens with which the recorded confidences are checked. `every` is the number of tokens between two recorded
    positions of a held-out window. `tokens` contains the tokens of the first windows."""

    every: Annotated[int, Field(ge=1, le=1 << 31)]
    tokens: Annotated[
        list[Annotated[list[Count], Field(min_length=2, max_length=MAX_REACH + 1)]],
        Field(min_length=1, max_length=MAX_WINDOWS),
    ]


class LanguageData(Strict):
    """Data from which the calibration was computed."""

    split: Annotated[str, Field(max_length=100)]
    window: Annotated[int, Field(ge=1, le=1 << 31)]
    fit_tokens: Count
    held_out_tokens: Count
    tokens_sha256: Sha256
    rows: HeldOutTokens | None = None

    def rows_kept(self) -> int:
        """Return the number of held-out positions that each mode must record."""
        return 0 if self.rows is None else self.held_out_tokens // self.window * (self.window // self.rows.every)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.rows is None:
            return self
        lengths = {len(part) - 1 for part in self.rows.tokens}
        if len(lengths) > 1 or max(lengths) > self.window or max(lengths) % self.rows.every:
            raise ValueError(
                "the lists in rows.tokens must have equal lengths; the length minus 1 must be a multiple of every and "
                "at most window"
            )
        if (count := len(self.rows.tokens)) > (most := self.held_out_tokens // self.window):
            raise ValueError(f"rows.tokens has {count} windows, but the held-out data have only {most}")
        return self


class LanguageSummary(Strict):
    """Summary of the calibration of a language model, which is repeated in the manifest."""

    temperature: ByMode[Temperature]
    ece_top: ByMode[Probability]
    ece_sampled: ByMode[Probability]
    held_out_tokens: Count


class LanguageCalibration(Strict):
    """Content of calibration.json of a language model."""

    method: Annotated[str, Field(max_length=200)]
    temperature: ByMode[Temperature]
    modes: ByMode[LanguageMode]
    data: LanguageData
    summary: LanguageSummary

    @model_validator(mode="after")
    def _agree(self) -> Self:
        for mode in ("attention", "recurrent"):
            entry: LanguageMode | None = getattr(self.modes, mode)
            repeated = {
                "temperature": (entry and entry.temperature, self.temperature, self.summary.temperature),
                "ece_top": (entry and entry.top.ece, self.summary.ece_top),
                "ece_sampled": (entry and entry.sampled.ece, self.summary.ece_sampled),
            }
            for name, (value, *others) in repeated.items():
                if any(getattr(other, mode) != value for other in others):
                    raise ValueError(f"the values of {name}.{mode} in modes and in summary must be equal")
            if entry is None:
                continue
            if (0 if entry.rows is None else len(entry.rows.right)) != self.data.rows_kept():
                raise ValueError(f"modes.{mode}.rows must contain {self.data.rows_kept()} rows, as data.rows requires")
        if self.summary.held_out_tokens != self.data.held_out_tokens:
            raise ValueError("held_out_tokens must be equal in data and in summary")
        return self
