"""``epp health``: check the health port, for environments without gRPC probes."""

from typing import Annotated

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.cli.running import fail

_TIMEOUT_SECONDS = 2.0
SERVING = "SERVING"


class HealthError(Exception):
    """A health port does not respond, or does not know the service."""


def health(
    address: Annotated[
        str, typer.Option(help="HOST:PORT of the gRPC health port.")
    ] = "127.0.0.1:9003",
    service: Annotated[
        str,
        typer.Option(
            help="Service to check: `liveness`, `readiness`, or any other the port reports."
        ),
    ] = "readiness",
) -> None:
    """Check whether an endpoint picker is serving; the exit status is 0 if so, else 1."""
    try:
        name = health_status(address, service)
    except HealthError as error:
        fail(str(error), status=1)
    if name != SERVING:
        fail(f"{address}: {service} is {name}", status=1)
    print(name)  # noqa: T201 - a command's output


def health_status(address: str, service: str) -> str:
    """Return the status that a health port reports; blocks.

    Raises:
        HealthError: The port does not respond, or does not know the service.
    """
    request = health_pb2.HealthCheckRequest(service=service)
    with grpc.insecure_channel(address) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            unreachable = error.code() is grpc.StatusCode.UNAVAILABLE
            hint = "; is an endpoint picker running, and is this its --grpc-health-port?"
            raise HealthError(
                f"{address}: {error.code().name}: {error.details()}{hint if unreachable else ''}"
            ) from None
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    return name
