"""Documentation of plugin classes from their source, for ``epp plugins list|show|docs``.

Nothing is instantiated: the text comes from docstrings, and for parameters from
:mod:`.parameter_docs`.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from textwrap import dedent
from typing import Final

import msgspec

from epp.cli.parameter_docs import ParameterDoc, parameter_docs
from epp.config.extension_points import extension_points_of
from epp.config.plugin_checks import params_of
from epp.config.supported import OLD_TYPES
from epp.data_layer.plugins import (
    DataSource,
    EndpointDiscovery,
    EndpointListener,
    EndpointSource,
    Extractor,
    ObjectListener,
    ObjectSource,
)
from epp.flow_control.plugins import (
    EvictionFilter,
    EvictionOrder,
    FairnessPolicy,
    OrderingPolicy,
    SaturationDetector,
    UsageLimitPolicy,
)
from epp.parsing.plugins import Parser
from epp.request_control.plugins import (
    Admitter,
    PreRequest,
    Producer,
    RequestHeaderProcessor,
    ResponseBodyStart,
    ResponseComplete,
    ResponseHeader,
    ResponseReporter,
    Screener,
)
from epp.scheduling import (
    Filter,
    Picker,
    Plugin,
    PostSchedule,
    PreSchedule,
    ProfileHandler,
    Scorer,
    StageDecider,
)

ROLES: Final[Mapping[str, tuple[type[Plugin], ...]]] = {
    "Parsers": (Parser,),
    "Saturation detectors": (SaturationDetector,),  # most are filters, too
    "Ordering policies": (OrderingPolicy,),
    "Fairness policies": (FairnessPolicy,),
    "Usage limit policies": (UsageLimitPolicy,),
    "Eviction policies": (EvictionFilter, EvictionOrder),
    "Filters": (Filter,),
    "Scorers": (Scorer,),
    "Pickers": (Picker,),
    "Profile handlers": (ProfileHandler,),
    "Deciders": (StageDecider,),
    "Data producers": (Producer,),
    "Screeners": (Screener,),
    "Admitters": (Admitter,),
    "Data layer": (
        DataSource,
        EndpointSource,
        ObjectSource,
        Extractor,
        EndpointDiscovery,
        EndpointListener,
        ObjectListener,
    ),
    "Request hooks": (
        RequestHeaderProcessor,
        PreSchedule,
        PostSchedule,
        PreRequest,
        ResponseHeader,
        ResponseBodyStart,
        ResponseReporter,
        ResponseComplete,
    ),
}
"""Roles of plugins by extension point; the first match applies."""
SESSION_PLUGINS: Final = "Session plugins"
_OTHERS: Final = "Others"


class PluginDoc(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin class."""

    type: str
    class_name: str
    """Name of the class with its module, or with its file if it is not in an installed package."""
    role: str
    """One of :data:`ROLES`, :data:`SESSION_PLUGINS` or "Others"."""
    extension_points: tuple[str, ...]
    summary: str
    """The first paragraph of ``doc``, without line breaks."""
    doc: str
    """Description, without the example: the docstring of its module; if the module has several
    plugins, that of the class followed by that of the module."""
    example: str
    """Lines of a configuration file; "" if there is none."""
    parameters: tuple[ParameterDoc, ...]
    reads: tuple[str, ...]
    """Names of the keys that it needs."""
    optional_reads: tuple[str, ...]
    """Names of the keys that it reads if they are written."""
    writes: tuple[str, ...]
    """Names of the keys or attributes that it writes."""
    old_names: tuple[str, ...]
    """Deprecated names of the type."""


def describe(plugin: type[Plugin]) -> PluginDoc:
    """Return the documentation of a valid plugin class."""
    doc, example = doc_and_example(plugin.type, plugin)
    return PluginDoc(
        type=plugin.type,
        class_name=class_name_of(plugin),
        role=_role(plugin),
        extension_points=extension_point_names(plugin),
        summary=summary_of(doc),
        doc=doc,
        example=example,
        parameters=parameter_docs(params_of(plugin)),
        reads=_key_names(plugin, "reads"),
        optional_reads=_key_names(plugin, "optional_reads"),
        writes=_key_names(plugin, "writes"),
        old_names=tuple(old for old, new in OLD_TYPES.items() if new == plugin.type),
    )


def extension_point_names(plugin: type[Plugin]) -> tuple[str, ...]:
    """Return the most specific extension points of a class."""
    points = extension_points_of(plugin)
    return tuple(
        point.__name__
        for point in points
        if not any(other is not point and issubclass(other, point) for other in points)
    )


def by_role(docs: Iterable[PluginDoc]) -> dict[str, list[PluginDoc]]:
    """Return the plugins by role, sorted by type; roles without plugins are left out."""
    found: dict[str, list[PluginDoc]] = {role: [] for role in (*ROLES, SESSION_PLUGINS, _OTHERS)}
    for doc in sorted(docs, key=lambda doc: doc.type):
        found[doc.role].append(doc)
    return {role: members for role, members in found.items() if members}


def _role(plugin: type[Plugin]) -> str:
    return next((role for role, points in ROLES.items() if issubclass(plugin, points)), _OTHERS)


def class_name_of(plugin: Callable[..., object]) -> str:
    """Return the name of a class or function, with its module or plugin file."""
    module = sys.modules.get(plugin.__module__)
    spec = getattr(module, "__spec__", None)
    if module is not None and spec is not None and spec.loader is None:  # a plugin file's module
        return f"{module.__file__}:{plugin.__qualname__}"
    return f"{plugin.__module__}.{plugin.__qualname__}"


def summary_of(doc: str) -> str:
    """Return the first paragraph of ``doc`` as one line."""
    return " ".join(doc.partition("\n\n")[0].split())


def doc_and_example(name: str, plugin: Callable[..., object]) -> tuple[str, str]:
    """Return the description and the example of the plugin ``name``, from its docstrings."""
    module = sys.modules.get(plugin.__module__)
    text = inspect.cleandoc((module and module.__doc__) or "")
    title, _, own = text.partition(": ")
    if title == f"``{name}``":
        text = own[:1].upper() + own[1:]
    else:  # the module may have several plugins
        text = f"{inspect.cleandoc(vars(plugin).get('__doc__') or '')}\n\n{text}"
    doc, _, rest = text.partition("Example::\n")
    example, after = _indented(rest)
    return f"{doc.strip()}\n\n{after}".strip(), dedent(example).strip("\n")


def _indented(text: str) -> tuple[str, str]:
    """Split off the leading lines that are indented or empty."""
    lines = text.split("\n")
    end = next((at for at, line in enumerate(lines) if line[:1].strip()), len(lines))
    return "\n".join(lines[:end]), "\n".join(lines[end:])


def _key_names(plugin: type[Plugin], which: str) -> tuple[str, ...]:
    return tuple(key.name for key in getattr(plugin, which, ()))
