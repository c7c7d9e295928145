"""Options that name the configuration of ``epp serve``."""

from pathlib import Path
from typing import Annotated

from epp.cli import option_groups as groups
from epp.config import LoadedConfig, PluginRegistry, default_config, load_file, load_text

ConfigFile = Annotated[
    Path | None,
    groups.configuration(help="EndpointPickerConfig, reloaded when it changes.", metavar="FILE"),
]
ConfigText = Annotated[
    str | None,
    groups.configuration(help="EndpointPickerConfig as text, instead of a file.", metavar="TEXT"),
]


def load_config(file: Path | None, text: str | None) -> LoadedConfig:
    """Return the configuration in ``file`` or ``text``, or the default one without both.

    Relative paths of plugin files start at the directory of ``file``, or for ``text`` at the
    working directory.

    Raises:
        ConfigError: The configuration is invalid.
    """
    if file is not None:
        inspect = PluginRegistry.from_entry_points().inspector(file.parent)
        return load_file(file, inspect=inspect)
    if text is not None:
        inspect = PluginRegistry.from_entry_points().inspector(Path())
        return load_text(text, "--config-text", inspect=inspect)
    return default_config()
