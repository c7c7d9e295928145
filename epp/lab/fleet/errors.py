"""Errors of the fake fleet: at startup, or of one request (`VllmApiError`)."""

from __future__ import annotations


class FleetError(Exception):
    """Base class of the fake fleet's errors."""


class FleetConfigError(FleetError):
    """A setting of the fleet or of an engine is wrong."""


class PortTakenError(FleetError):
    """A server cannot listen because its port is in use."""

    def __init__(self, endpoint: str, host: str, port: int) -> None:
        super().__init__(f"{endpoint}: port {port} on {host} is already in use")
        self.port = port
        """The port in use."""


class VllmApiError(FleetError):
    """A request failed; the response has vLLM's error body."""

    status = 400
    kind = "BadRequestError"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        """The message for the client."""
        self.param = param
        """Name of the invalid field of the request."""


class StageError(VllmApiError):
    """Another server did not complete its stage of the request."""

    status = 502
    kind = "BadGatewayError"

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} did not complete its stage of the request: {reason}")


class UnknownModelError(VllmApiError):
    """The request names a model or adapter that the server does not have."""

    status = 404
    kind = "NotFoundError"


def require(holds: bool, message: str) -> None:
    """Raise a `FleetConfigError` with this message unless a condition on a setting holds."""
    if not holds:
        raise FleetConfigError(message)
