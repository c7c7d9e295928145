"""Errors of simulations."""


class SimulationError(ValueError):
    """A simulation cannot be run as it was asked for; the message says why."""
