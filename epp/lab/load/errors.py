"""Errors of the load generator; failed requests are reported in a `Record` instead."""


class LoadError(Exception):
    """Base class of the load generator's errors."""


class PlanError(LoadError, ValueError):
    """A load plan is invalid; the message names the field."""
