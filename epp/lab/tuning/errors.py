"""Errors of tuning and replays."""


class TuningError(ValueError):
    """A search or a replay cannot be made as it was asked for; the message says why."""
