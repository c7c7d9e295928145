"""Two plugins in a package of their own; the entry point in pyproject.toml names ``PLUGINS``."""

from epp.scheduling import Plugin
from epp_example_plugins.label_preference import LabelPreferenceScorer
from epp_example_plugins.max_prompt import MaxPromptFilter

__all__ = ["PLUGINS", "LabelPreferenceScorer", "MaxPromptFilter"]

PLUGINS: tuple[type[Plugin], ...] = (LabelPreferenceScorer, MaxPromptFilter)
