"""Options of the commands that use the metrics port of a running endpoint picker."""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from epp.cli.debug_pages import DebugClient
from epp.cli.running import fail

DEFAULT_ADMIN: Final = "http://127.0.0.1:9090"

Connect = Callable[[], DebugClient]
"""Creates the client of the metrics port; raises PageError if an option is invalid."""


def _client(
    pool: Annotated[
        str,
        typer.Option(
            help="The InferencePool, where the endpoint picker serves several.", metavar="NAME"
        ),
    ] = "",
    admin: Annotated[
        str, typer.Option(help="URL of the port with /metrics and the debug pages.")
    ] = DEFAULT_ADMIN,
    admin_ca_file: Annotated[
        str,
        typer.Option(
            help="Certificate authorities of an HTTPS --admin, PEM; by default well-known ones.",
            metavar="FILE",
        ),
    ] = "",
    admin_cert_file: Annotated[
        str,
        typer.Option(
            help="Certificate and key of this client, PEM, if --admin asks for them.",
            metavar="FILE",
        ),
    ] = "",
    page_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with a bearer token that may read pages, where --metrics-endpoint-auth is"
            " on.",
            metavar="FILE",
        ),
    ] = None,
) -> DebugClient:
    return DebugClient(
        admin,
        pool=pool,
        ca_file=admin_ca_file,
        cert_file=admin_cert_file,
        token_file=page_token_file,
    )


def with_client(*, has_pool: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameter ``connect`` by the options of the metrics port.

    Args:
        has_pool: Whether ``--pool`` is one of the options.
    """
    options = [
        each.replace(kind=each.KEYWORD_ONLY)
        for name, each in inspect.signature(_client).parameters.items()
        if has_pool or name != "pool"
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**values: Any) -> None:  # noqa: ANN401 - Typer's
            given = {each.name: values.pop(each.name) for each in options}
            command(**values, connect=partial(_client, **given))

        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command).parameters.values():
            parameters += options if each.name == "connect" else [each]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer
        return called

    return decorate


def admin_token(file: Path) -> str:
    """Return the token for calls that change something; exit with a usage error without one."""
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"--token-file: {error}")
    if not token:
        fail(f"--token-file: {file} is empty")
    return token
