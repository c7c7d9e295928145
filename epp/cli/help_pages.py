"""Formats the help of commands: options in groups, with names that are never truncated.

Typer's own pages need a wide terminal: at 80 columns they truncate the names of options.
"""

import textwrap
from collections.abc import Mapping
from typing import Any, Final

from typer.core import TyperCommand

from epp.inputs import Panel

WIDTH: Final = 100
"""Maximum columns of a help page."""

_OTHERS: Final = "Options"
"""Heading of options without a group, such as --help; it is the last."""


class GroupedCommand(TyperCommand):
    """A command whose help shows options by group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - Typer hides them
        groups: dict[str, list[tuple[str, str]]] = {each.value: [] for each in Panel}
        groups[_OTHERS] = []
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                heading = getattr(option, "rich_help_panel", None) or _OTHERS
                groups[heading].append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        if self.epilog:
            indent = "  "
            lines = textwrap.wrap(
                self.epilog,
                formatter.width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
            formatter.write("\n" + "\n".join(lines) + "\n")


def context_settings() -> Mapping[str, Any]:
    """Return the settings that all commands share."""
    return {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH}
