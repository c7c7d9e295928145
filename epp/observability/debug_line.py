"""Log lines at level debug for frequent events, such as those of each request or scrape."""

from collections.abc import Callable, Mapping
from typing import Final, ParamSpec

from epp.observability.log_levels import LevelSwitch
from epp.observability.repeats import RepeatLimit

MAX_LINES_PER_SECOND: Final = 20

P = ParamSpec("P")


class DebugLine(LevelSwitch):
    """Writes one event at level debug, at most :data:`MAX_LINES_PER_SECOND` times a second.

    Args:
        event: The event.
        logger: Name of the logger.
        constants: Fields of all its lines.
    """

    __slots__ = ("_constants", "_event", "_limit")

    def __init__(self, event: str, *, logger: str, **constants: str) -> None:
        super().__init__(logger, "debug")
        self._event = event
        self._constants = constants
        self._limit = RepeatLimit(1.0, lines=MAX_LINES_PER_SECOND)

    def write(
        self,
        fields: Callable[P, Mapping[str, object]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Write a line; call it only if ``enabled``.

        Args:
            fields: Returns the fields; not called for a line that is left out.
            args: Arguments of ``fields``.
            kwargs: Keyword arguments of ``fields``.
        """
        left_out = self._limit.fields()
        if left_out is not None:
            made = fields(*args, **kwargs)
            self.log.debug(self._event, **made, **left_out, **self._constants)
