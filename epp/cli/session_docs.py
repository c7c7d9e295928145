"""Documentation of session plugins, for ``epp plugins list|show|docs``."""

from epp.cli.parameter_docs import parameter_docs
from epp.cli.plugin_docs import (
    SESSION_PLUGINS,
    PluginDoc,
    class_name_of,
    doc_and_example,
    summary_of,
)
from epp.flow_control.session_plugins import installed_builders
from epp.flow_control.sessions import SessionPlugin
from epp.flow_control.sessions.arguments import params_of
from epp.flow_control.sessions.registry import Builder


def installed_session_docs() -> list[PluginDoc]:
    """Return the documentation of the installed session plugins; blocks.

    Raises:
        ConfigError: Two packages have a plugin of the same name.
    """
    registry = installed_builders()
    builders = ((name, registry.builder(name)) for name in registry.names)
    return [describe_session_plugin(name, builder) for name, builder in builders if builder]


def describe_session_plugin(name: str, builder: Builder) -> PluginDoc:
    """Return the documentation of the session plugin ``name``."""
    doc, example = doc_and_example(name, builder)
    params = params_of(builder)
    return PluginDoc(
        type=name,
        class_name=class_name_of(builder),
        role=SESSION_PLUGINS,
        extension_points=(SessionPlugin.__name__,),
        summary=summary_of(doc),
        doc=doc,
        example=example,
        parameters=() if params is None else parameter_docs(params),
        reads=(),
        optional_reads=(),
        writes=(),
        old_names=(),
    )
