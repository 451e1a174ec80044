"""Content of a bundle by family: configuration, arrays, state, graphs and calibration.

`FAMILIES[manifest.family]` is the configuration class, whose instances have the rules. Tests compare them with the
model classes (`rfa.model.checkpoint.FAMILIES`), which are not imported here: reading a bundle needs no torch.
"""

from rfa.runtime.bundle.families.base import FamilyConfig, GraphRule
from rfa.runtime.bundle.families.filters import DeepConfig, LinearConfig
from rfa.runtime.bundle.families.language import LanguageConfig
from rfa.runtime.bundle.families.series import SeriesBundleConfig

__all__ = ["FAMILIES", "FamilyConfig", "GraphRule"]

FAMILIES: dict[str, type[FamilyConfig]] = {
    "language": LanguageConfig,
    "linear": LinearConfig,
    "deep": DeepConfig,
    "series": SeriesBundleConfig,
}
