"""Options that several commands have."""

from typing import Annotated

import typer

MAX_PORT = 65535

GrpcPort = Annotated[int, typer.Option(help="Port of ext_proc; 0 for any.", min=0, max=MAX_PORT)]
GrpcHealthPort = Annotated[
    int, typer.Option(help="Port of gRPC health; 0 for any.", min=0, max=MAX_PORT)
]
MetricsPort = Annotated[int, typer.Option(help="Port of /metrics; 0 for any.", min=0, max=MAX_PORT)]
