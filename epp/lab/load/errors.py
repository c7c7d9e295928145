"""Errors of the load generator; failed requests are reported in a `Record` instead."""

from epp.lab.results.record import ErrorKind


class LoadError(Exception):
    """Base class of the load generator's errors."""


class PlanError(LoadError, ValueError):
    """A load plan is invalid; the message names the field."""


class RequestFailedError(LoadError):
    """A request failed; `HttpRequestSender` turns it into a `Record`."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
