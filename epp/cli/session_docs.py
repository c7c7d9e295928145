"""Documentation of session plugins, for ``epp plugins list`` and ``show``.

Their arguments have no Struct: a plugin is built once without arguments, and its lookups of
arguments are recorded.
"""

import inspect
import sys
from contextlib import suppress
from typing import Final

import msgspec

from epp.cli.parameter_docs import ParameterDoc
from epp.cli.plugin_docs import PluginDoc, class_name_of, doc_and_example, summary_of
from epp.flow_control.session_plugins import installed_builders
from epp.flow_control.sessions import Arguments, SessionPlugin
from epp.flow_control.sessions.contracts import PLUGIN_FAULTS
from epp.flow_control.sessions.registry import Builder

ROLE: Final = "Session plugins"
_TYPES: Final = {
    "a text": "string",
    "a whole number": "integer",
    "a finite number": "number",
    "true or false": "boolean",
    "": "any",
}
"""Types in the words of other plugins' parameters, by the kinds that arguments are of."""


def installed_session_docs() -> list[PluginDoc]:
    """Return the documentation of the installed session plugins; blocks.

    Raises:
        ConfigError: Two packages have a plugin of one name.
    """
    registry = installed_builders()
    builders = ((name, registry.builder(name)) for name in registry.names)
    return [describe_session_plugin(name, builder) for name, builder in builders if builder]


def describe_session_plugin(name: str, builder: Builder) -> PluginDoc:
    """Return the documentation of the session plugin ``name``."""
    doc, example = doc_and_example(builder)
    if not _is_alone(builder):
        doc = f"{inspect.getdoc(builder) or ''}\n\n{doc}".strip()
    return PluginDoc(
        type=name,
        class_name=class_name_of(builder),
        role=ROLE,
        extension_points=(SessionPlugin.__name__,),
        summary=summary_of(builder),
        doc=doc,
        example=example,
        parameters=_arguments_of(name, builder),
        reads=(),
        optional_reads=(),
        writes=(),
        old_names=(),
    )


def _is_alone(builder: Builder) -> bool:
    """Whether it is the only session plugin of its module, so that the module docstring is its."""
    module = sys.modules.get(builder.__module__)
    there = vars(module).values() if module is not None else ()
    plugins = [
        each
        for each in there
        if isinstance(each, type)
        and issubclass(each, SessionPlugin)
        and each.__module__ == builder.__module__
    ]
    return len(plugins) <= 1


def _arguments_of(name: str, builder: Builder) -> tuple[ParameterDoc, ...]:
    arguments = Arguments(plugin=name)
    # A required argument may be missing; the lookups until then are recorded.
    with suppress(*PLUGIN_FAULTS):
        builder(arguments)
    return tuple(
        ParameterDoc(argument, _TYPES.get(kind, kind), _as_json(default))
        for argument, (kind, default) in arguments.asked().items()
    )


def _as_json(default: object) -> str:
    return msgspec.json.encode(default, enc_hook=repr).decode()
