"""What can go wrong in the fake fleet: at its start, or in one request (`ApiError`)."""

from __future__ import annotations


class FleetError(Exception):
    """Root of the fake fleet's errors."""


class ConfigError(FleetError):
    """A `FleetConfig` value is out of its range."""


class PortTakenError(FleetError):
    """A server cannot listen: something else has its port."""

    def __init__(self, endpoint: str, host: str, port: int) -> None:
        super().__init__(f"{endpoint}: port {port} on {host} is already in use")
        self.port = port
        """The port that is taken."""


class ApiError(FleetError):
    """A request that is answered with vLLM's error body."""

    status = 400
    kind = "BadRequestError"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        """The sentence the client reads."""
        self.param = param
        """Name of the request's field at fault."""


class StageError(ApiError):
    """Another server, which should have done a stage of the request, did not."""

    status = 502
    kind = "BadGatewayError"

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} cannot do its stage of the request: {reason}")


class UnknownModelError(ApiError):
    """The request names a model or adapter that the server has not."""

    status = 404
    kind = "NotFoundError"
