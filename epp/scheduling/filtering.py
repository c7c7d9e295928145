"""The filters of a profile, one after the other, and the record of who removed whom.

A filter that fails passes all endpoints or none, as its failure policy says. A composite filter
calls its inner ones back through a :class:`_NestedRun`, so that each of them is timed, guarded and
blamed under its own name.
"""

from collections.abc import Sequence
from itertools import filterfalse
from time import perf_counter
from typing import NoReturn

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.errors import PLUGIN_FAULTS, DroppedError, PluginContractError
from epp.scheduling.guards import Guard, GuardRails
from epp.scheduling.plugins import CompositeFilter, Filter, Plugin
from epp.scheduling.types import Endpoint, LLMRequest


class Blame(dict[Endpoint, str]):
    """Which filter removed an endpoint, by name; in the order in which they were removed."""

    __slots__ = ("failed",)

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[str] = set()
        """Names of those that removed all because they failed."""


class FilterChain:
    """The filters of one profile, in their order.

    Args:
        profile: Name of the profile.
        filters: In the order in which they run.
        guards: Makes their guards, and those of the filters inside them.
    """

    __slots__ = ("_filters", "_guards", "_inner", "profile")

    def __init__(self, profile: str, filters: Sequence[Filter], guards: GuardRails) -> None:
        self.profile = profile
        self._guards = guards
        self._filters = tuple(guards.guard("Filter", each) for each in filters)
        self._inner: dict[Filter, Guard[Filter]] = {}

    def run(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState, blamed: Blame
    ) -> Sequence[Endpoint]:
        """Return what every filter keeps, in the order of ``endpoints``; blame for the rest.

        Raises:
            DroppedError: A filter gave the request up.
        """
        kept = endpoints
        for guard in self._filters:
            kept = self.kept(guard, request, kept, state, blamed)
            if not kept:
                break
        return kept

    def kept(
        self,
        guard: Guard[Filter],
        request: LLMRequest,
        endpoints: Sequence[Endpoint],
        state: CycleState,
        blamed: Blame,
    ) -> Sequence[Endpoint]:
        """Return what one filter keeps."""
        plugin = guard.plugin
        if guard.is_off:
            return endpoints if guard.fails_open else _none_of(endpoints, plugin, blamed)
        inner = Blame()
        began = perf_counter()
        try:
            kept: Sequence[Endpoint]
            if isinstance(plugin, CompositeFilter):
                run = _NestedRun(self, request, state, inner)
                kept = plugin.filter_with(request, endpoints, state, run)
            else:
                kept = plugin.filter(request, endpoints, state)
            in_order, gone = _split(plugin, kept, endpoints)
        except DroppedError:
            guard.passed(perf_counter() - began)
            blamed |= inner
            raise
        except PLUGIN_FAULTS as error:
            guard.failed(error, perf_counter() - began)
            return endpoints if guard.fails_open else _none_of(endpoints, plugin, blamed)
        guard.passed(perf_counter() - began)
        if inner:
            blamed |= {endpoint: inner.get(endpoint, plugin.name) for endpoint in gone}
            blamed.failed |= inner.failed
        elif gone:
            blamed |= dict.fromkeys(gone, plugin.name)
        return in_order

    def inner_guard(self, inner: Filter) -> Guard[Filter]:
        """Return the guard of a filter inside a composite one."""
        guard = self._inner.get(inner)
        if guard is None:
            guard = self._inner[inner] = self._guards.guard("Filter", inner)
        return guard


class _NestedRun:
    """Runs the filters inside a composite one, and notes which of them removed whom last."""

    __slots__ = ("_blamed", "_chain", "_request", "_state")

    def __init__(
        self, chain: FilterChain, request: LLMRequest, state: CycleState, blamed: Blame
    ) -> None:
        self._chain = chain
        self._request = request
        self._state = state
        self._blamed = blamed

    def __call__(self, inner: Filter, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        given = tuple(endpoints)
        if not given:
            return given
        guard = self._chain.inner_guard(inner)
        return self._chain.kept(guard, self._request, given, self._state, self._blamed)

    def drop(self, by: Plugin, reason: str) -> NoReturn:
        raise DroppedError(self._chain.profile, by.name, reason)


def _split(
    plugin: Plugin, kept: Sequence[Endpoint], endpoints: Sequence[Endpoint]
) -> tuple[Sequence[Endpoint], Sequence[Endpoint]]:
    """Return ``kept`` in the order of ``endpoints``, and the rest.

    Raises:
        PluginContractError: It is no list, or has endpoints twice or such as were not given.
    """
    if not isinstance(kept, (list, tuple)):
        raise PluginContractError(
            f"filter {plugin.name!r} returned {type(kept).__name__}, not a list of endpoints"
        )
    # Most filters keep all; two tuples are compared at 5 ns an endpoint.
    if len(kept) == len(endpoints) and tuple(kept) == endpoints:
        return endpoints, ()
    passed = set(kept)
    gone = tuple(filterfalse(passed.__contains__, endpoints))
    if not len(passed) == len(kept) == len(endpoints) - len(gone):
        what = "an endpoint twice"
        if foreign := [each for each in kept if each not in endpoints]:
            what = f"{getattr(foreign[0], 'name', foreign[0])!r}, which it was not given"
        raise PluginContractError(f"filter {plugin.name!r} returned {what}")
    # A tuple, because the plugins that follow are all given this very object.
    return tuple(filter(passed.__contains__, endpoints)), gone


def _none_of(endpoints: Sequence[Endpoint], plugin: Plugin, blamed: Blame) -> Sequence[Endpoint]:
    blamed |= dict.fromkeys(endpoints, plugin.name)
    blamed.failed.add(plugin.name)
    return ()
