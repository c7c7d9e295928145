"""``epp plugins list | show | docs | new``: list, document and create plugins."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from epp.cli import plugin_templates
from epp.cli.plugin_docs import PluginDoc, by_role, class_name_of, describe
from epp.cli.plugin_pages import pages_of, write_pages
from epp.cli.running import fail
from epp.cli.session_docs import describe_session_plugin, installed_session_docs
from epp.config import ConfigError, PluginRegistry
from epp.config.plugin_checks import check_plugin_class
from epp.config.plugin_files import load_plugin_file
from epp.config.registry import FILE_PREFIX, split_file_type
from epp.flow_control.session_plugins import installed_builders, session_plugin_in
from epp.scheduling import Plugin

plugins = typer.Typer(
    help="List plugins, show what one does and takes, write a new one.", no_args_is_help=True
)
console = Console(highlight=False)

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
KINDS = tuple(
    sorted(
        each.name.removeprefix("example_").removesuffix(".py").replace("_", "-")
        for each in files(plugin_templates).iterdir()
        if each.name.startswith("example_")
    )
)
_SESSION_PLUGIN = "session-plugin"
_IN_A_PROFILE = "\nschedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: {}"
_IN_FLOW_CONTROL = "\nfeatureGates: [flowControl]\nflowControl:\n  "
_NAMED_BESIDE_PLUGINS = {
    "fairness-policy": _IN_FLOW_CONTROL + "defaultPriorityBand:\n    fairnessPolicyRef: {}",
    "ordering-policy": _IN_FLOW_CONTROL + "defaultPriorityBand:\n    orderingPolicyRef: {}",
    "usage-limit-policy": _IN_FLOW_CONTROL + "usageLimitPolicyPluginRef: {}",
    **dict.fromkeys(("filter", "picker", "scorer"), _IN_A_PROFILE),
    "parser": "\nrequestHandler:\n  parsers:\n  - pluginRef: {}\n  - pluginRef: openai-parser",
}

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@plugins.command("list")
def list_plugins(as_json: AsJson = False) -> None:
    """List every installed plugin type; invalid ones are reported at the end."""
    docs, faults = _installed()
    with _refusals():
        docs += installed_session_docs()
    docs.sort(key=lambda doc: doc.type)
    if as_json:
        _print_json(docs)
    else:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column()
        for role, members in by_role(docs).items():
            if table.row_count:
                table.add_row()
            table.add_row(Text(role, style="bold"))
            for doc in members:
                table.add_row(Text(f"  {doc.type}"), Text(doc.summary.replace("``", "")))
        console.print(table)
    if faults:
        fail("\n".join(faults), status=1)


@plugins.command("show")
def show(
    plugin_type: Annotated[
        str, typer.Argument(metavar="TYPE", help="A plugin type, or file:PATH.py:ClassName.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a plugin does, what it reads and writes, and its parameters.

    A plugin file is loaded and checked as in the endpoint picker; all faults are reported.
    """
    doc = _session_doc(plugin_type)
    if doc is None:
        plugin = _find(plugin_type)
        if faults := check_plugin_class(plugin):
            fail("\n".join(faults), status=1)
        doc = describe(plugin)
    if as_json:
        _print_json(doc)
        return
    _print_doc(doc)


@plugins.command("docs")
def docs(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where to write them.")],
    package: Annotated[
        str, typer.Option(help="Only the plugins of this Python package, such as my_plugins.")
    ] = "",
) -> None:
    """Write a Markdown page for every installed plugin type, and README.md as the index.

    Pages of types that no longer exist are removed.
    """
    found, faults = _installed(package)
    if faults:
        fail("\n".join(faults), status=1)
    with _refusals():
        found += [doc for doc in installed_session_docs() if _is_in(package, doc.class_name)]
    if not found:
        fail(f"--package {package}: no installed plugin is in it")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        written, removed = write_pages(pages_of(found), directory)
    except OSError as error:
        fail(str(error), status=1)
    for what, names in (("written", written), ("removed", removed)):
        for name in names:
            console.print(f"{what}: {directory / name}", soft_wrap=True, markup=False)


@plugins.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Name of the plugin type, such as spot-filter.")],
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")],
    directory: Annotated[Path, typer.Option(help="Where to write the two files.")] = Path(),
) -> None:
    """Create a plugin file and its test; both work as generated and are meant to be edited."""
    if kind not in KINDS:
        fail(f"--kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if not _NAME.fullmatch(name):
        fail(
            f"a plugin type is made of lower-case words and hyphens, such as spot-{kind}: {name!r}"
        )
    if not directory.is_dir():
        fail(f"--directory {directory}: there is no such folder")
    written = _written(name, kind)
    for file in written:
        if (directory / file).exists():
            fail(f"{directory / file} is there already; remove it, or take another name")
    for file, text in written.items():
        (directory / file).write_text(text, encoding="utf-8")
    plugin_file, test_file = (directory / file for file in written)
    plugin_type = f"{FILE_PREFIX}{plugin_file}:{_class_name(name)}"
    console.print(
        f"{plugin_file}\n{test_file}\n\n"
        f"Test it:  pytest {test_file}\n"
        f"Show it:  epp plugins show {plugin_type}\n"
        "Use it (the file begins with a longer example):\n\n"
        f"{_use_of(kind, name, plugin_type)}",
        soft_wrap=True,
        markup=False,
    )


def _use_of(kind: str, name: str, plugin_type: str) -> str:
    """Return configuration lines that use the plugin."""
    if kind == _SESSION_PLUGIN:
        return (
            "featureGates: [flowControl]\nextensions:\n  sessions:\n    plugins:\n"
            f"      {plugin_type}: {{}}"
        )
    beside = _NAMED_BESIDE_PLUGINS.get(kind, "").format(name)
    return f"plugins:\n- type: {plugin_type}\n  name: {name}{beside}"


def _written(name: str, kind: str) -> dict[str, str]:
    """Return the files of a new plugin by name: the plugin, then its test."""
    template = f"example-{kind}"
    renamed = {
        template: name,
        template.replace("-", "_"): name.replace("-", "_"),
        template.replace("-", "_").upper(): name.replace("-", "_").upper(),
        _class_name(template): _class_name(name),
    }
    pattern = re.compile("|".join(map(re.escape, renamed)))
    made: dict[str, str] = {}
    for prefix in ("", "test_"):
        file = f"{prefix}example_{kind.replace('-', '_')}.py"
        text = files(plugin_templates).joinpath(file).read_text(encoding="utf-8")
        made[f"{prefix}{name.replace('-', '_')}.py"] = pattern.sub(
            lambda found: renamed[found[0]], text
        )
    return made


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def _find(plugin_type: str) -> type[Plugin]:
    try:
        if plugin_type.startswith(FILE_PREFIX):
            return load_plugin_file(*split_file_type(plugin_type)).plugin
        return _registry().get(plugin_type)
    except ConfigError as error:
        fail(str(error), status=1)


def _session_doc(plugin_type: str) -> PluginDoc | None:
    """Return the documentation of a session plugin; None if it does not exist."""
    with _refusals():
        if not plugin_type.startswith(FILE_PREFIX):
            builder = installed_builders().builder(plugin_type)
            return builder and describe_session_plugin(plugin_type, builder)
        found = session_plugin_in(plugin_type)
        if found is None:
            return None
        if not getattr(found, "name", ""):
            fail(f"{plugin_type}: it has no `name`; give it one", status=1)
        return describe_session_plugin(found.name, found)


@contextmanager
def _refusals() -> Iterator[None]:
    """Exit with status 1 on ``ConfigError``."""
    try:
        yield
    except ConfigError as error:
        fail(str(error), status=1)


def _installed(package: str = "") -> tuple[list[PluginDoc], list[str]]:
    """Return the documentation of the valid installed plugins, and the faults of the others."""
    docs: list[PluginDoc] = []
    faults: list[str] = []
    for plugin in sorted(_registry(), key=lambda plugin: plugin.type):
        if not _is_in(package, class_name_of(plugin)):
            continue
        found = check_plugin_class(plugin)
        faults += found
        if not found:
            docs.append(describe(plugin))
    return docs, faults


def _is_in(package: str, class_name: str) -> bool:
    return not package or class_name.startswith(f"{package}.")


def _registry() -> PluginRegistry:
    try:
        return PluginRegistry.from_entry_points()
    except ConfigError as error:
        fail(str(error), status=1)


def _print_json(docs: PluginDoc | list[PluginDoc]) -> None:
    text = msgspec.json.format(msgspec.json.encode(docs), indent=2).decode()
    print(text)  # noqa: T201 - the command's output


def _print_doc(doc: PluginDoc) -> None:
    console.print(Text(doc.type, style="bold"), Text(f"({', '.join(doc.extension_points)})"))
    console.print(Text(f"{doc.class_name}\n\n{_plain(doc.doc)}\n"), soft_wrap=True)
    console.print("Parameters:" if doc.parameters else "It takes no parameters.")
    for each in doc.parameters:
        default = "must be given" if each.default is None else f"default {each.default}"
        facts = ", ".join(filter(None, (each.type, each.range, default)))
        console.print(Padding(Text(f"{each.name} ({facts})"), (0, 0, 0, 2)))
        if each.doc:
            console.print(Padding(Text(_plain(each.doc)), (0, 0, 0, 6)))
    if doc.parameters:
        console.print()
    keys = {
        "reads": doc.reads,
        "reads if there": doc.optional_reads,
        "writes": doc.writes,
        "deprecated name": doc.old_names,
    }
    for title, names in keys.items():
        if names:
            console.print(Text(f"{title}: {', '.join(names)}"))
    if doc.example:
        console.print("\nExample:")
        console.print(Syntax(doc.example, "yaml", background_color="default"))


def _plain(doc: str) -> str:
    """Return a docstring with single backticks for code."""
    return doc.replace("``", "`")
