"""``epp config check | show | schema | diff``: inspect configurations without running them."""

import sys
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TextIO

import msgspec
import typer

from epp.building import make_builder
from epp.cli.editor_schema import editor_schema
from epp.config import (
    ConfigError,
    ConfigFile,
    Fate,
    GraphBuilder,
    PluginGraph,
    changes,
    default_config,
    load_file,
)
from epp.config.instances import close_all
from epp.config.schema import ExtensionsEntry
from epp.config.yaml_nodes import dump
from epp.flow_control.session_plugins import fault_in_configuring, session_plan

config = typer.Typer(
    help="Check configurations, show them with all defaults, and compare two.", no_args_is_help=True
)

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="EndpointPickerConfig files.")]


@config.command("check")
def check(files: Files) -> None:
    """Check configurations and print all problems.

    Each line has the form FILE:LINE:COLUMN: FIELD: PROBLEM; the exit status is 1 if there are any.
    Plugin files are loaded and checked, too, and session plugins are configured. Nothing is
    started.
    """
    with _refusals_to(sys.stdout):
        builder = make_builder(experimental="warn")
    are_sound = [_check(builder, file, is_named=len(files) > 1) for file in files]
    if not all(are_sound):
        raise typer.Exit(1)


def _check(builder: GraphBuilder, file: Path, *, is_named: bool) -> bool:
    """Print the problems of ``file``, or its number of plugins and profiles."""
    try:
        graph = _built(builder, file)
        if fault := fault_in_configuring(session_plan(graph)):
            _close(graph)
            problem = graph.config.problem("extensions.sessions.plugins", fault, on_key=True)
            raise ConfigError.of(str(file), [problem])
    except ConfigError as error:
        _say(str(error))
        return False
    for warning in (*graph.config.warnings, *graph.warnings):
        _say(replace(warning, message=f"warning: {warning.message}").text(str(file)))
    written = graph.config.file
    plugins, profiles = written.plugins, written.scheduling_profiles
    _say(
        f"{f'{file}: ' if is_named else ''}ok: {_counted(plugins, 'plugin')},"
        f" {_counted(profiles, 'profile')}"
    )
    _close(graph)
    return True


@config.command("show")
def show(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="The file; without one, the built-in default is shown."
        ),
    ] = None,
) -> None:
    """Print a configuration as YAML with every default written out.

    The output is an equivalent configuration.
    """
    with _refusals_to(sys.stderr):
        graph = _built(make_builder(), file)
    _say(dump(_plain(graph.effective)).rstrip())
    _close(graph)


@config.command("schema")
def schema() -> None:
    """Print the JSON Schema of configurations, for editors.

    It includes the parameters of every installed plugin. With the YAML language server, put its
    path into the first line of the file: # yaml-language-server: $schema=PATH
    """
    with _refusals_to(sys.stderr):
        found = editor_schema(make_builder().registry)
    _say(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


@config.command("diff")
def diff(
    running: Annotated[Path, typer.Argument(metavar="A", help="The configuration that runs.")],
    following: Annotated[Path, typer.Argument(metavar="B", help="The one to be loaded.")],
) -> None:
    """Show what a reload from configuration A to B would do to each plugin.

    A plugin that is kept keeps its state; a rebuilt one starts without.
    """
    with _refusals_to(sys.stderr):
        builder = make_builder()
        before = _built(builder, running)
        after = _built(builder, following, before)
    fates = changes(before, after)
    sections = list(_changed_sections(before.effective, after.effective))
    for change in fates:
        _say(f"{change.fate.value:<8} {change.name}: {change.reason}")
    for section in sections:
        _say(f"changed  {section}")
    if not sections and all(change.fate is Fate.KEPT for change in fates):
        _say("no difference: loading it changes nothing")
    _close(before, after)


@contextmanager
def _refusals_to(stream: TextIO) -> Iterator[None]:
    """On ConfigError, write the problems to ``stream`` and exit with status 1."""
    try:
        yield
    except ConfigError as error:
        print(error, file=stream)
        raise typer.Exit(1) from None


def _say(text: str) -> None:
    print(text)  # noqa: T201 - the command's output


def _counted(things: Sized, name: str) -> str:
    return f"{len(things)} {name}" if len(things) == 1 else f"{len(things)} {name}s"


def _built(
    builder: GraphBuilder, file: Path | None, previous: PluginGraph | None = None
) -> PluginGraph:
    if file is None:
        return builder.build(default_config())
    return builder.build(load_file(file, inspect=builder.registry.inspector(file.parent)), previous)


def _close(*graphs: PluginGraph) -> None:
    """Close every plugin once; graphs may share some."""
    instances = (each for graph in graphs for each in graph.instances.values())
    close_all({id(each.plugin): each.plugin for each in instances}.values())


def _plain(effective: ConfigFile) -> object:
    """Return the values to print, without ``extensions`` if all of its values are defaults.

    Without them the Go EPP accepts the file, too.
    """
    value = msgspec.to_builtins(effective)
    if effective.extensions == ExtensionsEntry():
        del value["extensions"]
    return _without_nulls(value)


def _without_nulls(value: object) -> object:
    """Drop null fields, but keep parameters as in the file, including nulls in maps."""
    if isinstance(value, dict):
        return {
            key: each if key in {"parameters", "arguments"} else _without_nulls(each)
            for key, each in value.items()
            if each is not None
        }
    if isinstance(value, list | tuple):
        return [_without_nulls(each) for each in value]
    return value


def _changed_sections(before: ConfigFile, after: ConfigFile) -> Iterator[str]:
    """Yield the sections that differ, except ``plugins``, whose changes are listed one by one."""
    for field in msgspec.structs.fields(ConfigFile):
        if field.name != "plugins" and getattr(before, field.name) != getattr(after, field.name):
            yield field.encode_name
