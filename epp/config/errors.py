"""Errors of the configuration."""


class ConfigError(ValueError):
    """The configuration asks for something that cannot be built; the text says where and why."""
