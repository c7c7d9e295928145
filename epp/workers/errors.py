"""Errors of worker processes; the root is :class:`WorkerError`."""


class WorkerError(Exception):
    """The worker processes cannot start, or cannot go on; the text says why and what to do."""
