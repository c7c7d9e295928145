"""Options of the commands that talk to the metrics port of a running endpoint picker."""

from pathlib import Path
from typing import Annotated

import typer

from epp.cli.running import fail

DEFAULT_ADMIN = "http://127.0.0.1:9090"

Admin = Annotated[str, typer.Option(help="URL of the port with /metrics and the debug pages.")]
Pool = Annotated[
    str,
    typer.Option(
        help="The InferencePool, where the endpoint picker serves several.", metavar="NAME"
    ),
]
AdminCaFile = Annotated[
    str,
    typer.Option(
        help="Certificate authorities of an HTTPS --admin, PEM; by default well-known ones.",
        metavar="FILE",
    ),
]
AdminCertFile = Annotated[
    str,
    typer.Option(
        help="Certificate and key of this client, PEM, if --admin asks for them.", metavar="FILE"
    ),
]
PageTokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with a bearer token that may read pages, where --metrics-endpoint-auth is on.",
        metavar="FILE",
    ),
]


def admin_token(file: Path) -> str:
    """Return the token of changing calls; exit with a usage error if there is none."""
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--token-file: {error}")
    if not token:
        fail(f"--token-file: {file} is empty")
    return token
