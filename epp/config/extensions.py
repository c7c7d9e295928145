"""What layers above make of the sections of ``extensions`` that this one knows by name only."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from epp.config.instances import ReportProblem
from epp.config.plan import Plan
from epp.config.plugin_files import RunFile
from epp.config.registry import PluginTypes

if TYPE_CHECKING:
    from epp.config.graph import PluginGraph


class ExtensionMaker(Protocol):
    """Makes an object of one section."""

    def __call__(
        self,
        section: Any,  # noqa: ANN401 - a class of the schema; which one depends on the section
        files: Mapping[str, RunFile],
        report: ReportProblem,
    ) -> object:
        """Return what is made of ``section``; runs on the event loop.

        Args:
            section: As the schema has it.
            files: Those that the section names, by name as it spells them.
            report: Is told of everything wrong, at paths of the whole configuration; what is
                returned then is not used.
        """


ExtensionMakers = Mapping[str, ExtensionMaker]
"""By section, such as ``sessions``."""


def make_extensions(
    makers: ExtensionMakers, plan: Plan, types: PluginTypes, previous: "PluginGraph | None"
) -> None:
    """Add to ``plan`` what is made of each section, or was if the section has not changed."""
    for name, make in makers.items():
        section = getattr(plan.config.file.extensions, name)
        if (
            previous is not None
            and name in previous.extensions
            # As text, in which 1, 1.0 and true are three things.
            and repr(section) == repr(getattr(previous.config.file.extensions, name))
            and types.session_files == previous.types.session_files
        ):
            plan.extensions[name] = previous.extensions[name]
        else:
            plan.extensions[name] = make(section, types.session_files, plan.report)
