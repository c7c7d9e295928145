"""The extension points of the scheduling framework (GIE proposal 0845).

Every method is synchronous and runs on the event loop between two awaits, so a cycle sees one
consistent set of endpoints. Input and output belong in the data layer. One class may implement
several extension points; one instance then serves them all.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.types import (
    Endpoint,
    LLMRequest,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)

if TYPE_CHECKING:
    from epp.scheduling.profile import SchedulerProfile


class Plugin(ABC):
    """Base of all plugins.

    Attributes:
        type: Name used in the configuration file, for example ``prefix-cache-scorer``.
        name: Name of this instance; unique within one configuration.
    """

    type: ClassVar[str]
    name: str


class Filter(Plugin):
    """Removes endpoints that cannot serve the request."""

    @abstractmethod
    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        """Return the endpoints that may serve ``request``, in the order given; none is allowed."""


class Scorer(Plugin):
    """Ranks endpoints."""

    @abstractmethod
    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        """Return one score per endpoint.

        Args:
            request: The request being scheduled.
            endpoints: N endpoints that passed every filter; N is at least 1.
            state: Values from plugins that ran earlier for this request.

        Returns:
            N scores in the order of ``endpoints``, each in [0.0, 1.0], higher is better. Values
            outside are clamped, NaN counts as 0.
        """


class Picker(Plugin):
    """Chooses the target endpoints."""

    @abstractmethod
    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        """Return at least one of ``scored`` (which has at least one), best first.

        A profile passes :class:`ScoredEndpoints`: its two lists are cheaper to read than its items.
        """


class ProfileHandler(Plugin):
    """Decides which profiles run for a request and which of them is the answer."""

    @abstractmethod
    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, "SchedulerProfile"],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, "SchedulerProfile"]:
        """Return the profiles to run next, in order; empty ends the loop.

        Called again after each round with the results so far. A profile runs at most once.
        """

    @abstractmethod
    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        """Make the answer out of the results.

        Raises:
            SchedulingError: The request fails; usually the ``error`` of a failed profile.
        """


class PreSchedule(Plugin):
    """Runs once before the first profile of a schedule() call."""

    @abstractmethod
    def pre_schedule(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> None:
        """Prepare what several profiles share."""


class PostSchedule(Plugin):
    """Runs once after process_results, only if an endpoint was chosen."""

    @abstractmethod
    def post_schedule(
        self, request: LLMRequest, result: SchedulingResult, state: CycleState
    ) -> None:
        """Learn from the decision."""
