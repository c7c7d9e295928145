"""The filters of a profile, and the record of which filter removed which endpoint.

A filter that fails passes all endpoints or none, according to its failure policy. A composite
filter calls its inner filters through a :class:`_NestedRun`, so that each of them is timed, guarded
and recorded under its own name.
"""

from collections.abc import Sequence
from itertools import filterfalse
from time import perf_counter
from typing import Any, Generic, NoReturn

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.errors import PLUGIN_FAULTS, DroppedError, PluginContractError
from epp.scheduling.guards import Guard, GuardRails
from epp.scheduling.plugins import CompositeFilter, Filter, Plugin
from epp.scheduling.types import EndpointT, RequestT


class Blame(dict[int, str]):
    """Names of the filters that removed endpoints, by the endpoint's id(), in order of removal."""

    __slots__ = ("failed", "is_held")

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[str] = set()
        """Names of the filters that removed all endpoints because they failed."""
        self.is_held = False
        """Whether a filter that holds requests removed the last endpoints."""


class FilterChain(Generic[RequestT, EndpointT]):
    """The filters of one profile.

    Args:
        profile: Name of the profile.
        filters: In the order in which they run.
        guards: Makes their guards, and those of filters inside composite ones.
    """

    __slots__ = ("_filters", "_guards", "_inner", "profile")

    def __init__(
        self, profile: str, filters: Sequence[Filter[RequestT, EndpointT]], guards: GuardRails
    ) -> None:
        self.profile = profile
        self._guards = guards
        self._filters = tuple(guards.guard("Filter", each) for each in filters)
        self._inner: dict[Filter[Any, Any], Guard[Filter[Any, Any]]] = {}

    def run(
        self, request: RequestT, endpoints: Sequence[EndpointT], state: CycleState, blamed: Blame
    ) -> Sequence[EndpointT]:
        """Return the endpoints that pass every filter, in their order; record the others.

        Raises:
            DroppedError: A filter dropped the request.
        """
        kept = endpoints
        for guard in self._filters:
            kept = self.kept(guard, request, kept, state, blamed)
            if not kept:
                break
        return kept

    def kept(
        self,
        guard: Guard[Filter[Any, Any]],
        request: RequestT,
        endpoints: Sequence[EndpointT],
        state: CycleState,
        blamed: Blame,
    ) -> Sequence[EndpointT]:
        """Return the endpoints that pass one filter; record the others."""
        plugin = guard.plugin
        if guard.is_off:
            return endpoints if guard.fails_open else _none_of(endpoints, plugin, blamed)
        inner = Blame()
        began = perf_counter()
        try:
            kept: Sequence[EndpointT]
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
            blamed |= {id(each): inner.get(id(each), plugin.name) for each in gone}
            blamed.failed |= inner.failed
            blamed.is_held |= inner.is_held and not in_order
        elif gone:
            blamed |= dict.fromkeys(map(id, gone), plugin.name)
            blamed.is_held |= plugin.holds and not in_order
        return in_order

    def inner_guard(self, inner: Filter[Any, Any]) -> Guard[Filter[Any, Any]]:
        """Return the guard of a filter inside a composite one."""
        guard = self._inner.get(inner)
        if guard is None:
            guard = self._inner[inner] = self._guards.guard("Filter", inner)
        return guard


class _NestedRun(Generic[RequestT, EndpointT]):
    """Runs the filters inside a composite one; records which of them removed an endpoint last."""

    __slots__ = ("_blamed", "_chain", "_request", "_state")

    def __init__(
        self,
        chain: FilterChain[RequestT, EndpointT],
        request: RequestT,
        state: CycleState,
        blamed: Blame,
    ) -> None:
        self._chain = chain
        self._request = request
        self._state = state
        self._blamed = blamed

    def __call__(
        self, inner: Filter[Any, EndpointT], endpoints: Sequence[EndpointT]
    ) -> Sequence[EndpointT]:
        given = tuple(endpoints)
        if not given:
            return given
        guard = self._chain.inner_guard(inner)
        return self._chain.kept(guard, self._request, given, self._state, self._blamed)

    def drop(self, by: Plugin, reason: str) -> NoReturn:
        raise DroppedError(self._chain.profile, by.name, reason)


def _split(
    plugin: Plugin, kept: Sequence[EndpointT], endpoints: Sequence[EndpointT]
) -> tuple[Sequence[EndpointT], Sequence[EndpointT]]:
    """Return ``kept`` in the order of ``endpoints``, and the rest.

    Raises:
        PluginContractError: It is not a list, or has duplicate or unknown endpoints.
    """
    if not isinstance(kept, (list, tuple)):
        raise PluginContractError(
            f"filter {plugin.name!r} returned {type(kept).__name__}, not a list of endpoints"
        )
    if endpoints and type(endpoints[0]).__hash__ is not object.__hash__:
        return _split_by_id(plugin, kept, endpoints)
    # Most filters keep all; comparing two tuples takes 5 ns per endpoint.
    if len(kept) == len(endpoints) and tuple(kept) == endpoints:
        return endpoints, ()
    passed = set(kept)
    gone = tuple(filterfalse(passed.__contains__, endpoints))
    if not len(passed) == len(kept) == len(endpoints) - len(gone):
        raise _not_of_these(plugin, kept, endpoints)
    # A tuple, because all plugins that follow share this object.
    return tuple(filter(passed.__contains__, endpoints)), gone


def _split_by_id(
    plugin: Plugin, kept: Sequence[EndpointT], endpoints: Sequence[EndpointT]
) -> tuple[Sequence[EndpointT], Sequence[EndpointT]]:
    """Split like :func:`_split`, for endpoints that compare by value or cannot be hashed."""
    passed = set(map(id, kept))
    gone = tuple(each for each in endpoints if id(each) not in passed)
    if not len(passed) == len(kept) == len(endpoints) - len(gone):
        raise _not_of_these(plugin, kept, endpoints)
    return tuple(each for each in endpoints if id(each) in passed), gone


def _not_of_these(
    plugin: Plugin, kept: Sequence[object], endpoints: Sequence[object]
) -> PluginContractError:
    what, given = "an endpoint twice", set(map(id, endpoints))
    if len(given) < len(endpoints):
        what = "ambiguous endpoints: two of those that it was given are the same object"
    if foreign := [each for each in kept if id(each) not in given]:
        stranger = getattr(foreign[0], "name", foreign[0])
        is_name = stranger is None or any(stranger == _name(each) for each in endpoints)
        # Any other value may be part of the request, so only its class is shown.
        shown = repr(stranger) if is_name else f"a {type(foreign[0]).__name__}"
        what = f"{shown}, which it was not given"
        if isinstance(foreign[0], type(endpoints[0])) and is_name:
            what += " (a copy of one that it was: return the endpoints themselves)"
    return PluginContractError(f"filter {plugin.name!r} returned {what}")


def _name(endpoint: object) -> object:
    return getattr(endpoint, "name", endpoint)


def _none_of(endpoints: Sequence[EndpointT], plugin: Plugin, blamed: Blame) -> Sequence[EndpointT]:
    blamed |= dict.fromkeys(map(id, endpoints), plugin.name)
    blamed.failed.add(plugin.name)
    return ()
