"""The scheduler: one profile handler, its profiles, one synchronous call per request."""

from collections.abc import Mapping, Sequence

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.errors import PluginContractError, ProfileLoopError
from epp.scheduling.plugins import PostSchedule, PreSchedule, ProfileHandler
from epp.scheduling.profile import SchedulerProfile
from epp.scheduling.types import Endpoint, LLMRequest, ProfileResult, SchedulingResult


class Scheduler:
    """Runs the profile loop of GIE proposal 0845.

    The engine reads no field of the request and only ``name`` of an endpoint; everything else is
    the plugins' business.
    """

    def __init__(
        self,
        handler: ProfileHandler,
        profiles: Mapping[str, SchedulerProfile],
        *,
        pre_schedule: Sequence[PreSchedule] = (),
        post_schedule: Sequence[PostSchedule] = (),
    ) -> None:
        self.handler = handler
        self.profiles = dict(profiles)
        self._pre_schedule = tuple(pre_schedule)
        self._post_schedule = tuple(post_schedule)

    def schedule(
        self,
        request: LLMRequest,
        endpoints: Sequence[Endpoint],
        state: CycleState | None = None,
    ) -> SchedulingResult:
        """Choose endpoints for ``request``.

        Args:
            request: Passed to every plugin as it is.
            endpoints: The pool's snapshot; not changed.
            state: The request's scratch space; one is made if the caller has none.

        Raises:
            NoEndpointsError: The deciding profile was left without an endpoint.
            ProfileLoopError: The handler named an unknown profile, one that has run, or none.
            PluginContractError: A plugin broke its contract.
        """
        if state is None:
            state = CycleState()
        for hook in self._pre_schedule:
            hook.pre_schedule(request, endpoints, state)
        results: dict[str, ProfileResult] = {}
        handler = self.handler
        while picked := handler.pick_profiles(request, self.profiles, results, state):
            for name, profile in picked.items():
                if name in results or name not in self.profiles:
                    why = "has run already" if name in results else "does not exist"
                    raise ProfileLoopError(
                        f"profile handler {handler.name!r} picked profile {name!r}, which {why}"
                    )
                results[name] = profile.run(request, endpoints, state)
        if not results:
            raise ProfileLoopError(f"profile handler {handler.name!r} picked no profile")
        result = handler.process_results(request, results, state)
        primary = result.profiles.get(result.primary)
        if primary is None or not primary.endpoints:
            raise PluginContractError(
                f"profile handler {handler.name!r} answered with profile {result.primary!r},"
                " which has no endpoint"
            )
        for post in self._post_schedule:
            post.post_schedule(request, result, state)
        return result
