"""The commands of ``epp``."""

import sys

import structlog
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
    # For commands that configure no log: the default prints the locals of every frame, where there
    # are prompts and keys.
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S"),
            structlog.dev.ConsoleRenderer(
                colors=sys.stdout.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    )
    cli()


__all__ = ["cli", "main"]
