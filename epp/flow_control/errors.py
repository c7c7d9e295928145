"""Errors of flow control; the root is :class:`FlowControlError`."""


class FlowControlError(Exception):
    """Flow control cannot work as it is configured; the text says why and what to do."""
