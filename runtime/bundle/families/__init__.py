"""Rules for the content of a bundle of each model family: configuration, arrays, state, graphs and calibration.

`FAMILIES[manifest.family]` is the configuration class, whose instances provide the rules. Tests compare these classes
with the model classes (`rfa.model.checkpoint.FAMILIES`). The latter are not imported here, because they need torch.
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
