"""Documentation of session plugins, for ``epp plugins list`` and ``show``."""

import inspect
import sys
from typing import Final

from epp.cli.parameter_docs import parameter_docs
from epp.cli.plugin_docs import PluginDoc, class_name_of, doc_and_example, summary_of
from epp.flow_control.session_plugins import installed_builders
from epp.flow_control.sessions import SessionPlugin
from epp.flow_control.sessions.arguments import params_of
from epp.flow_control.sessions.registry import Builder

ROLE: Final = "Session plugins"


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
    params = params_of(builder)
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
        parameters=() if params is None else parameter_docs(params),
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
