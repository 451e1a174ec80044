"""What a bundle of each family holds: configuration, arrays, state, graphs and calibration, declared once.

    FAMILIES[manifest.family]       the configuration class of a family; an instance knows everything else

The model classes (`rfa.model.checkpoint.FAMILIES`) are where the arrays come from; a test holds their names and shapes
to these, for many configurations. Nothing here imports them: reading a bundle needs no torch.
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
