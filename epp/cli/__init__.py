"""The commands of ``epp``.

The module of a command is imported on first use: importing all modules took a sixth of the start-up
time of ``epp serve``.
"""

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, Final, Never

import structlog
import typer
from typer.core import TyperGroup

from epp.cli.help_pages import GroupedCommand, context_settings

_MODULES: Final = {
    "serve": "serve",
    "up": "up",
    "fleet": "fleet",
    "load": "load",
    "simulate": "simulate",
    "tune": "tune",
    "replay": "replay",
    "envoy-config": "envoy_config",
    "doctor": "doctor",
    "health": "health",
    "config": "config",
    "explain": "explain",
    "top": "top",
    "drain": "drain",
    "force-endpoint": "force_endpoint",
    "log": "log",
    "plugins": "plugins",
    "session": "session",
}
"""Module of each command; it contains a function or ``typer.Typer`` named like the command."""


# Typer exports only one of the subclasses, and the class has changed between its versions.
_UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
_NO_ARGUMENTS: Final = "NoArgsIsHelpError"
"""Class name of click's error whose message is the help text; Typer prints it."""
_NUMBER: Final = re.compile(r"a valid (int|float)(?: range)?\b")
"""Matches the name of a click type in its error messages."""


class _Commands(MutableMapping[str, Any]):
    """The commands by name, created on first use."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - Typer hides the type of commands
        return _make(name, _MODULES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)

    def __setitem__(self, name: str, command: Any) -> Never:  # noqa: ANN401 - as above
        raise TypeError("the commands are those of _MODULES")

    def __delitem__(self, name: str) -> Never:
        raise TypeError("the commands are those of _MODULES")


class _Group(TyperGroup):
    """The group ``epp``; a flag instead of a command means ``epp serve``."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - Typer's
        super().__init__(**attributes | {"commands": {}})
        self.commands = _Commands()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer hides it
        own = {name for each in self.get_params(ctx) for name in each.opts}
        if args and args[0].startswith("-") and args[0].partition("=")[0] not in own:
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer hides it
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if type(error).__name__ == _NO_ARGUMENTS:
                raise
            print(f"epp: {_in_one_line(error)}", file=sys.stderr)  # noqa: T201 - a user's error
            raise typer.Exit(2) from None


def _in_one_line(error: Any) -> str:  # noqa: ANN401 - Typer hides its class
    """Return the text of a usage error in the format of :func:`epp.cli.running.fail`."""
    if isinstance(error, typer.BadParameter) and error.param is not None and error.message:
        # Imported late: importing the configuration would slow down every other command.
        from epp.config.fault_texts import TYPE_NAMES  # noqa: PLC0415

        fault = _NUMBER.sub(lambda found: TYPE_NAMES[found[1]], error.message)
        name = max(error.param.opts, key=len)
        return f"{name}: {fault}".rstrip(".")
    text: str = error.format_message()
    return (text[:1].lower() + text[1:]).rstrip(".")


@cache
def _make(name: str, module: str) -> Any:  # noqa: ANN401 - Typer hides the type of commands
    found = getattr(_imported(f"epp.cli.{module}"), name.replace("-", "_"))
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name, cls=_class_of(name), context_settings=dict(context_settings()))(found)
    made = typer.main.get_command(app)
    return getattr(made, "commands", {}).get(name, made)


def _imported(module: str) -> ModuleType:
    """Import without garbage collection, which would take a tenth of the time and free nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if was_enabled:
            gc.enable()


def _class_of(name: str) -> type[GroupedCommand]:
    if name != "serve":
        return GroupedCommand
    return import_module("epp.cli.go_flags").GoFlagsCommand  # type: ignore[no-any-return]


def _print_version(value: bool) -> None:
    if value:
        # Imported here because it takes 20 ms.
        version = import_module("importlib.metadata").version("endpoint-picker")
        build = " (compiled)" if import_module("epp.compiled").IS_COMPILED else ""
        print(f"epp {version}{build}")  # noqa: T201 - a command's output
        raise typer.Exit


cli = typer.Typer(
    name="epp",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=dict(context_settings()),
)


@cli.callback()
def _epp(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Endpoint picker for LLM inference gateways: Envoy asks it which model server to use.

    Without a command, flags are those of serve.
    """


def main() -> None:
    """Run the command line."""
    if os.getpid() == 1:
        # The kernel delivers no signal to PID 1 of a container without a handler. A SIGTERM while
        # `epp serve` started would be lost, and the container would run until SIGKILL.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # For commands that do not configure logging: by default, structlog prints the locals of every
    # frame, which may contain prompts and keys.
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S"),
            structlog.dev.ConsoleRenderer(
                colors=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    )
    cli()


__all__ = ["cli", "main"]
