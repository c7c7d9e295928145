"""Prefixes of prompts that arrive so often that a further server should cache them.

A server that has cached a prefix gets the requests with it, until waiting there costs more than
computing the prefix elsewhere. By then many requests wait. So if requests with a prefix would take
most of the time of every server that has cached it, other servers are credited with a part of the
prefix: one of them then gets a request earlier, and caches the prefix.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import Final

from epp_plugins.predicted_time.constants import Constants

BEGINNING_TOKENS: Final = 2048
"""Prompts are distinguished by their first tokens, this many."""
_MEMORY_SECONDS: Final = 10.0
"""Time constant of the rate of a beginning."""
_LEAST_TOKENS: Final = 500.0
"""A shorter prefix is not worth a credit."""
_HELD: Final = 0.7
"""A server holds a prefix if it has cached this share of what the best server has."""
_MOST_BEGINNINGS: Final = 4096
"""Maximum beginnings whose rates are kept; the least recent ones are dropped."""


class HotPrefixes:
    """Measures the rates of beginnings, and credits servers that lack a hot one.

    Args:
        constants: ``hotLoad`` and ``replicationCredit``.
    """

    __slots__ = ("_constants", "_recent")

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._recent: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def arrived(self, beginning: int, now: float) -> None:
        """Count a request.

        Args:
            beginning: Hash of the beginning of its prompt.
            now: Seconds of the clock.
        """
        recent = self._recent
        weight, at = recent.pop(beginning, (0.0, now))
        recent[beginning] = weight * exp(-max(0.0, now - at) / _MEMORY_SECONDS) + 1.0, now
        if len(recent) > _MOST_BEGINNINGS:
            recent.popitem(last=False)

    def credited(
        self,
        beginning: int,
        endpoints: Sequence[str],
        total_tokens: float,
        tokens: Mapping[str, float],
        service: Callable[[float], float],
    ) -> Mapping[str, float]:
        """Return the uncached tokens by endpoint with which to compare endpoints for a request.

        Args:
            beginning: Hash of the beginning of its prompt.
            endpoints: Names of the candidates.
            total_tokens: Its uncached tokens at endpoints that ``tokens`` lacks.
            tokens: Its uncached tokens by endpoint.
            service: Returns the seconds that a number of uncached tokens takes.
        """
        least = min(tokens.values(), default=total_tokens)
        cached = total_tokens - least
        if cached < _LEAST_TOKENS:
            return tokens
        most_missing = total_tokens - _HELD * cached
        holders = sum(each < most_missing for each in tokens.values())
        weight, _ = self._recent.get(beginning, (0.0, 0.0))
        load = weight / _MEMORY_SECONDS * service(least) / holders
        constants = self._constants
        if load <= constants.hot_load:
            return tokens
        credited = total_tokens - constants.replication_credit * cached
        counted = {}
        for name in endpoints:
            uncached = tokens.get(name, total_tokens)
            counted[name] = uncached if uncached < most_missing else min(uncached, credited)
        return counted
