"""Errors of scenarios."""


class ScenarioError(ValueError):
    """A scenario is invalid; the message names the file and the field."""
