"""The commands: ``epp serve | up | fleet | load | envoy-config``."""

import typer

from epp.cli.lab import envoy_config, fleet, load, up
from epp.cli.serve import serve

cli = typer.Typer(
    name="epp",
    help="Endpoint picker for LLM inference gateways: Envoy asks it which model server to use.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
cli.command()(serve)
cli.command()(up)
cli.command()(fleet)
cli.command()(load)
cli.command("envoy-config")(envoy_config)


def main() -> None:
    """Run the command line."""
    cli()


__all__ = ["cli", "main"]
