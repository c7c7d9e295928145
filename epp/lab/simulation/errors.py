"""Errors of simulations."""


class SimulationError(ValueError):
    """A simulation cannot be run as requested; the message says why."""
