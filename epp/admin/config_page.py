"""The page ``/debug/config``: the configuration in use, the last reload and its changes."""

import re
from collections.abc import Callable, Mapping
from difflib import unified_diff
from http import HTTPStatus
from itertools import islice
from typing import Final

import msgspec

from epp.config import ConfigReloader, PluginGraph
from epp.observability import AdminError

PATH: Final = "config"
RELOAD_PATH: Final = "config/reload"
"""Path, below ``/debug/``, of the call that reads the file again."""

_MAX_DIFF_LINES: Final = 400
_MAX_TEXT_CHARS: Final = 200_000
_SECRET: Final = re.compile(
    r"""(?ix)( ["']? [\w-]* (?:password|passwd|secret|api[-_]?key|authorization|credential)
    [\w-]* ["']? \s* : \s* ) ( "(?:[^"\\]|\\.)*" | '(?:[^']|'')*' | [^\s,}\]][^,}\]\n]* )"""
)
"""Matches a field whose value is not shown, and the value."""


class ReloadLine(msgspec.Struct, frozen=True, kw_only=True):
    """The last reload."""

    at: float
    """Unix seconds."""
    result: str
    """``success``, ``failure``, ``rollback`` or ``unchanged``."""
    problem: str
    """Why it was refused or rolled back; "" if it was not."""


class ConfigPage(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the page."""

    source: str
    digest: str
    text: str
    """The configuration, without the values of fields that may be secret."""
    last_reload: ReloadLine | None
    """None before the first reload."""
    diff: list[str]
    """Lines of a unified diff from the previous configuration; empty if there is none."""


class ConfigView:
    """Shows the configuration to operators.

    Args:
        graph: Returns the plugin graph in use.
        reloader: Follows the file; None if there is no file.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        graph: Callable[[], PluginGraph],
        reloader: ConfigReloader | None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._graph = graph
        self._reloader = reloader
        self._clock = clock
        self._wall_clock = wall_clock

    def page(self) -> ConfigPage:
        """Return the current page."""
        config = self._graph().config
        text = shown_text(config.text)
        return ConfigPage(
            source=config.source,
            digest=config.digest,
            text=text,
            last_reload=self._last_reload(),
            diff=self._diff(text),
        )

    def reload(self, given: Mapping[str, str]) -> Mapping[str, bool]:
        """Request a reload of the file; the page shows its result.

        Raises:
            AdminError: There is no file, or a parameter is given.
        """
        if given:
            raise AdminError(HTTPStatus.BAD_REQUEST, "this call has no parameters")
        if self._reloader is None:
            text = "nothing to reload, the configuration does not come from a file"
            raise AdminError(HTTPStatus.CONFLICT, text)
        self._reloader.reload_now()
        return {"requested": True}

    def _last_reload(self) -> ReloadLine | None:
        last = None if self._reloader is None else self._reloader.last_outcome
        if last is None:
            return None
        at = self._wall_clock() - (self._clock() - last.at)
        return ReloadLine(at=round(at, 3), result=last.result, problem=last.problem)

    def _diff(self, text: str) -> list[str]:
        former = None if self._reloader is None else self._reloader.former_text
        if former is None:
            return []
        lines = unified_diff(
            shown_text(former).splitlines(), text.splitlines(), "before", "in use", lineterm=""
        )
        return list(islice(lines, _MAX_DIFF_LINES))


def shown_text(text: str) -> str:
    """Return a configuration without the values of fields whose names say that they are secret."""
    return _SECRET.sub(r"\1(not shown)", text[:_MAX_TEXT_CHARS])
