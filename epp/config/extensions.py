"""Sections of ``extensions`` that layers above turn into objects; this layer knows their names."""

from collections.abc import Mapping
from typing import Any, Protocol

from epp.config.graph import PluginGraph
from epp.config.instances import ReportProblem
from epp.config.plan import Plan
from epp.config.plugin_files import RunFile
from epp.config.registry import PluginTypes


class ExtensionMaker(Protocol):
    """Builds an object from one section."""

    def __call__(
        self,
        section: Any,  # noqa: ANN401 - a class of the schema; which one depends on the section
        files: Mapping[str, RunFile],
        report: ReportProblem,
    ) -> object:
        """Build the object; runs on the event loop.

        Args:
            section: The typed section.
            files: Plugin files that the section names, keyed by the name in the configuration.
            report: Receives every problem, with paths from the root of the configuration. The
                return value is ignored if there is one.
        """


ExtensionMakers = Mapping[str, ExtensionMaker]
"""By section name, such as ``sessions``."""


def make_extensions(
    makers: ExtensionMakers, plan: Plan, types: PluginTypes, previous: PluginGraph | None
) -> None:
    """Add the object of each section to ``plan``; an unchanged section keeps its object."""
    for name, make in makers.items():
        section = getattr(plan.config.file.extensions, name)
        if (
            previous is not None
            and name in previous.extensions
            # Compared as text: 1 == 1.0 == True, but their repr differs.
            and repr(section) == repr(getattr(previous.config.file.extensions, name))
            and types.session_files == previous.types.session_files
        ):
            plan.extensions[name] = previous.extensions[name]
        else:
            plan.extensions[name] = make(section, types.session_files, plan.report)
