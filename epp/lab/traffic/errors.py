"""Errors of traffic descriptions."""


class TrafficError(ValueError):
    """A description of traffic or a trace is invalid; the message names the field or the line."""
