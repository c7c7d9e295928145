"""The commands of ``epp``."""

import typer

from epp.cli.config import config
from epp.cli.doctor import doctor
from epp.cli.explain import explain
from epp.cli.go_flags import GoFlagsCommand
from epp.cli.lab import envoy_config, fleet, load, up
from epp.cli.plugins import plugins
from epp.cli.serve import serve
from epp.cli.session import session

cli = typer.Typer(
    name="epp",
    help="Endpoint picker for LLM inference gateways: Envoy asks it which model server to use.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
cli.command(cls=GoFlagsCommand)(serve)
cli.command()(up)
cli.command()(fleet)
cli.command()(load)
cli.command("envoy-config")(envoy_config)
cli.command()(doctor)
cli.add_typer(config, name="config")
cli.add_typer(explain, name="explain")
cli.add_typer(plugins, name="plugins")
cli.add_typer(session, name="session")


def main() -> None:
    """Run the command line."""
    cli()


__all__ = ["cli", "main"]
