"""The extension points of the scheduling framework (GIE proposal 0845).

Every method is synchronous and runs on the event loop between two awaits, so a cycle sees one
consistent set of endpoints. I/O belongs in the data layer. One class may implement
several extension points; one instance then serves them all.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NoReturn, Protocol

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.errors import DroppedError
from epp.scheduling.types import (
    EndpointT,
    ProfileResult,
    RequestT,
    SchedulingResult,
    ScoredEndpoint,
)


class Plugin(ABC):
    """Base of all plugins.

    Attributes:
        type: Name used in the configuration file, for example ``prefix-cache-scorer``.
        name: Name of this instance; unique within one configuration.
        warnings: Texts about parameters that are probably a mistake; logged, and shown by
            ``epp config check``.
        recomputable: Whether its results depend only on what the record of a decision holds:
            labels, metrics page and load of the endpoints, the request without its headers and its
            prompt, and the default prefix producer's matches. ``epp explain what-if`` then calls
            it; results of other plugins are taken from the record.
    """

    type: ClassVar[str]
    name: str
    warnings: Sequence[str] = ()
    recomputable: bool = False

    def close(self) -> None:  # noqa: B027 - most plugins hold no resources
        """Release the instance's resources, such as a thread or a file.

        Called once: when a reload has removed the plugin and its last request has ended, or when
        the process stops.
        """

    def dump_state(self) -> Mapping[str, object] | None:
        """Return what the plugin remembers, for ``/debug/plugins/state``; None if nothing.

        Called on the event loop, between two requests, so it must take at most a few milliseconds:
        count, and list the largest items only. Name endpoints and flows; show other values from
        clients as hashes: no prompts, no session ids, no credentials.
        """
        return None


class Filter(Plugin, Generic[RequestT, EndpointT]):
    """Removes endpoints that cannot serve the request.

    Attributes:
        fails_open: The failure policy: applies if this filter raises, returns an unknown endpoint,
            or is disabled. True: the filter is skipped, and all endpoints pass. False: none passes,
            and the request ends with 429. Leave it True where the filter improves choices; set it
            False where it keeps requests from endpoints that would serve them wrongly or must not
            get them. The configuration can override it (``extensions.guardRails.failurePolicy``, by
            plugin name).
        holds: Whether it removes all endpoints to let the request wait for one of them. Then
            endpoints that are ejected are not tried in their place.
    """

    fails_open: ClassVar[bool] = True
    holds: ClassVar[bool] = False

    @abstractmethod
    def filter(
        self, request: RequestT, endpoints: Sequence[EndpointT], state: CycleState
    ) -> list[EndpointT]:
        """Return those of ``endpoints`` that may serve ``request``; perhaps none.

        ``endpoints`` is not empty. The result is a list or tuple without duplicates, in any order.
        """


class FilterRun(Protocol[EndpointT]):
    """Runs an inner filter of a composite filter.

    The call is timed under the inner filter's own name and guarded like any other: a filter that
    raises passes all endpoints or none, according to its failure policy.
    """

    def __call__(
        self, inner: Filter[Any, EndpointT], endpoints: Sequence[EndpointT]
    ) -> Sequence[EndpointT]:
        """Return the endpoints that ``inner`` keeps, in their order.

        Without endpoints, ``inner`` is not called. It lives as long as the filter that runs it.
        """

    def drop(self, by: Plugin, reason: str) -> NoReturn:
        """End the profile: the request is dropped with 429 ``rejected-saturated``."""


class CompositeFilter(Filter[RequestT, EndpointT]):
    """A filter made of other filters, such as a decision tree."""

    @abstractmethod
    def filter_with(
        self,
        request: RequestT,
        endpoints: Sequence[EndpointT],
        state: CycleState,
        run: FilterRun[EndpointT],
    ) -> Sequence[EndpointT]:
        """Return the endpoints that may serve ``request``; call inner filters through ``run``."""

    def filter(
        self, request: RequestT, endpoints: Sequence[EndpointT], state: CycleState
    ) -> list[EndpointT]:
        """Filter outside of a profile, without guards."""
        return list(self.filter_with(request, endpoints, state, _PlainRun(request, state)))


class _PlainRun(Generic[RequestT, EndpointT]):
    def __init__(self, request: RequestT, state: CycleState) -> None:
        self._request = request
        self._state = state

    def __call__(
        self, inner: Filter[Any, EndpointT], endpoints: Sequence[EndpointT]
    ) -> Sequence[EndpointT]:
        if not endpoints:
            return endpoints
        if isinstance(inner, CompositeFilter):
            return inner.filter_with(self._request, endpoints, self._state, self)
        return inner.filter(self._request, endpoints, self._state)

    def drop(self, by: Plugin, reason: str) -> NoReturn:
        raise DroppedError("", by.name, reason)


class Scorer(Plugin, Generic[RequestT, EndpointT]):
    """Ranks endpoints.

    Attributes:
        score_range: Lowest and highest value that ``score`` returns, if not (0.0, 1.0); the
            framework scales it to [0, 1].
        normalize: ``"min-max"`` to have the framework scale each request's scores to [0, 1] (1.0 if
            all are equal).
    """

    score_range: ClassVar[tuple[float, float] | None] = None
    normalize: ClassVar[Literal["min-max"] | None] = None

    @abstractmethod
    def score(
        self, request: RequestT, endpoints: Sequence[EndpointT], state: CycleState
    ) -> list[float]:
        """Return one score per endpoint.

        Args:
            request: The request being scheduled.
            endpoints: N endpoints that passed every filter; N is at least 1.
            state: Values from plugins that ran earlier for this request.

        Returns:
            A list or tuple of N scores in the order of ``endpoints``, higher is better, each in
            [0.0, 1.0] unless the class declares ``score_range`` or ``normalize``. Values outside
            are clamped, NaN counts as 0; both are counted, and logged once.
        """


@dataclass(frozen=True, slots=True)
class WeightedScorer(Generic[RequestT, EndpointT]):
    """A scorer and its weight in a profile; below 0, a high score counts against an endpoint."""

    scorer: Scorer[RequestT, EndpointT]
    weight: float = 1.0


class Picker(Plugin, Generic[RequestT, EndpointT]):
    """Chooses the target endpoints."""

    @abstractmethod
    def pick(
        self, request: RequestT, scored: Sequence[ScoredEndpoint[EndpointT]], state: CycleState
    ) -> list[ScoredEndpoint[EndpointT]]:
        """Return at least one of ``scored`` (which has at least one), best first.

        A profile passes :class:`ScoredEndpoints`: its two lists are cheaper to read than its items.
        """


class ProfileHandler(Plugin, Generic[RequestT, EndpointT]):
    """Decides which profiles run for a request and which of them is the primary one."""

    picks_once: ClassVar[bool] = False
    """Whether :meth:`pick_profiles` returns none when it is called again, so that one call is
    enough. It applies to the ``pick_profiles`` of the class that declares it; a subclass that
    overrides the method must declare it again."""

    def profile_faults(self, profiles: Collection[str]) -> Iterable[str]:
        """Return errors in the configured profiles, by name; called once, at start.

        Each text says what is wrong and how to fix it; any of them rejects the configuration.
        """
        return ()

    def profile_warnings(self, profiles: Collection[str]) -> Iterable[str]:
        """Return warnings about the configured profiles; called once, at start."""
        return ()

    @abstractmethod
    def pick_profiles(
        self,
        request: RequestT,
        profiles: Mapping[str, Any],
        results: Mapping[str, ProfileResult[EndpointT]],
        state: CycleState,
    ) -> Mapping[str, Any]:
        """Return the profiles to run next, in order; empty ends the loop.

        Called again after each round with the results so far. A profile runs at most once.

        Args:
            request: The request being scheduled.
            profiles: All profiles by name, each a :class:`SchedulerProfile`. The type is not named
                here because profiles are made of the extension points of this module.
            results: Results of the profiles that have run.
            state: Values from plugins that ran earlier for this request.

        Raises:
            UnknownProfileError: The request names a profile that is not among ``profiles``.
        """

    @abstractmethod
    def process_results(
        self, request: RequestT, results: Mapping[str, ProfileResult[EndpointT]], state: CycleState
    ) -> SchedulingResult[EndpointT]:
        """Combine the results of the profiles.

        Raises:
            SchedulingError: The request fails; usually the ``error`` of a failed profile.
        """


class StageDecider(Plugin, Generic[RequestT, EndpointT]):
    """Decides whether a request goes through an optional stage, such as a separate prefill.

    Called by a profile handler; several of them in one handler are distinguished by name.
    """

    @abstractmethod
    def wants_stage(self, request: RequestT, endpoint: EndpointT | None, state: CycleState) -> bool:
        """Return whether ``request`` goes through the stage.

        Args:
            request: The request being scheduled.
            endpoint: The endpoint of its main stage; None if it is not chosen yet.
            state: Values from plugins that ran earlier for this request.
        """


class PreSchedule(Plugin, Generic[RequestT, EndpointT]):
    """Runs once before the first profile of a schedule() call."""

    @abstractmethod
    def pre_schedule(
        self, request: RequestT, endpoints: Sequence[EndpointT], state: CycleState
    ) -> None:
        """Prepare data that several profiles share."""


class PostSchedule(Plugin, Generic[RequestT, EndpointT]):
    """Runs once after process_results, only if an endpoint was chosen."""

    keeps_result: ClassVar[bool] = False
    """Whether the plugin never changes a result. The check after each call, which takes 2 us, is
    then omitted: only for plugins whose code is trusted."""

    @abstractmethod
    def post_schedule(
        self, request: RequestT, result: SchedulingResult[EndpointT], state: CycleState
    ) -> None:
        """Learn from the decision."""
