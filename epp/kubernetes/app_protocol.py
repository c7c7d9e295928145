"""Checks whether the ``appProtocol`` of a pool suits the configured parsers."""

from collections.abc import Callable, Iterable

import structlog

from epp.kubernetes.pools import Pool
from epp.parsing import Parser
from epp.scheduling import Plugin

_log = structlog.get_logger(__name__)


class AppProtocolCheck:
    """Compares the protocol of a pool with those of the parsers, as the Go EPP does.

    Args:
        pool: Returns the pool, None while there is none.
    """

    def __init__(self, pool: Callable[[], Pool | None]) -> None:
        self._pool = pool
        self._logged = ""

    def is_met_by(self, parsers: Iterable[Plugin]) -> bool:
        """Return whether all parsers can be used with the pool; the log says why not, once.

        A pool without a protocol suits every parser; so does a missing pool.
        """
        pool = self._pool()
        problem = "" if pool is None else _problem(pool.app_protocol, parsers)
        if problem != self._logged:
            self._logged = problem
            if problem:
                _log.warning("not ready: a parser does not suit the pool", problem=problem)
        return not problem


def _problem(protocol: str, parsers: Iterable[Plugin]) -> str:
    for each in parsers:
        known = each.app_protocols if isinstance(each, Parser) else ()
        if protocol and known and protocol not in known:
            return (
                f"the pool's appProtocol is {protocol}, and {each.name} is for"
                f" {' or '.join(known)}: change the pool, or take the parser out of"
                " requestHandler.parsers"
            )
    return ""
