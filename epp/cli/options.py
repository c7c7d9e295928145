"""Options that several commands have."""

import math
from typing import Annotated

import typer

from epp.cli import option_groups as groups

MAX_PORT = 65535


def finite(value: float) -> float:
    """Return ``value``, which a range lets through as ``nan`` or without an upper end as ``inf``.

    Raises:
        BadParameter: It is one of these.
    """
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number of seconds")
    return value


GrpcPort = Annotated[
    int, groups.ports(help="Port of ext_proc; 0 for any.", min=0, max=MAX_PORT, metavar="PORT")
]
GrpcHealthPort = Annotated[
    int,
    groups.ports(
        help="Port of gRPC health checks; 0 for any.", min=0, max=MAX_PORT, metavar="PORT"
    ),
]
MetricsPort = Annotated[
    int, groups.ports(help="Port of /metrics; 0 for any.", min=0, max=MAX_PORT, metavar="PORT")
]
