"""Options that several commands have."""

import math
from typing import Annotated

import typer

MAX_PORT = 65535


def finite(value: float) -> float:
    """Return ``value``, which a range lets through as ``nan`` or without an upper end as ``inf``.

    Raises:
        BadParameter: It is one of these.
    """
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number of seconds")
    return value


GrpcPort = Annotated[int, typer.Option(help="Port of ext_proc; 0 for any.", min=0, max=MAX_PORT)]
GrpcHealthPort = Annotated[
    int, typer.Option(help="Port of gRPC health; 0 for any.", min=0, max=MAX_PORT)
]
MetricsPort = Annotated[int, typer.Option(help="Port of /metrics; 0 for any.", min=0, max=MAX_PORT)]
MaxMetricsConnections = Annotated[
    int,
    typer.Option(help="Most connections to the metrics port; one more closes the idlest.", min=1),
]
