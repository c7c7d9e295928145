"""Errors of the load generator; a failing request is a `Record`, never one of these."""


class LoadError(Exception):
    """Root of what the load generator raises."""


class PlanError(LoadError, ValueError):
    """A load plan that cannot be run; the message names the field."""
