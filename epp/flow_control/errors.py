"""Errors of flow control; the root is :class:`FlowControlError`."""


class FlowControlError(Exception):
    """The configured flow control cannot work; the text says why and what to do."""
