"""Errors of tuning and replays."""


class TuningError(ValueError):
    """A search or a replay cannot be made as requested; the message says why."""
