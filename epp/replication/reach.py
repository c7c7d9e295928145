"""The log lines of a carrier that loses and regains its way to the other replicas."""

import structlog

_log = structlog.get_logger(__name__)


class ReachLog:
    """Logs each loss once, however often a carrier tries in vain, and its end."""

    def __init__(self) -> None:
        self._is_lost = False

    def lost(self, error: str, **where: object) -> None:
        """Log that an attempt has failed, if it is the first since the last success."""
        if not self._is_lost:
            self._is_lost = True
            _log.warning("replica state is out of reach, going on without it", **where, error=error)

    def regained(self, **where: object) -> None:
        """Log a success, if there was a failure before."""
        if self._is_lost:
            self._is_lost = False
            _log.info("replica state is in reach again", **where)
