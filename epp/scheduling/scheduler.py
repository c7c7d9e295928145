"""The scheduler: one profile handler, its profiles, one synchronous call per request."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from types import MappingProxyType

from epp.scheduling.cycle_state import CycleState
from epp.scheduling.errors import (
    PluginContractError,
    ProfileHandlerError,
    ProfileLoopError,
    SchedulingError,
)
from epp.scheduling.guards import GuardRails
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
        guards: GuardRails | None = None,
    ) -> None:
        """Wire the scheduler.

        Args:
            handler: Chooses among the profiles.
            profiles: By name.
            pre_schedule: Run once before the first profile, in this order.
            post_schedule: Run once after the choice, in this order.
            guards: Makes the guards of the hooks.
        """
        guards = guards or GuardRails()
        self.handler = handler
        self.profiles = MappingProxyType(dict(profiles))
        self._handler = guards.watch("ProfileHandler", handler)
        self._pre_schedule = guards.guards("PreSchedule", PreSchedule, pre_schedule)
        self._post_schedule = guards.guards("PostSchedule", PostSchedule, post_schedule)

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
            DroppedError: A filter of the deciding profile gave the request up.
            ProfileLoopError: The handler named an unknown profile, one that has run, or none.
            ProfileHandlerError: The handler raised.
            PluginContractError: The handler answered with what its contract forbids.
        """
        if state is None:
            state = CycleState()
        for hook in self._pre_schedule:
            if hook.is_off:
                continue
            began = perf_counter()
            try:
                hook.plugin.pre_schedule(request, endpoints, state)
            except Exception as error:
                hook.failed(error, perf_counter() - began)
            else:
                hook.passed(perf_counter() - began)
        result = self._decided(request, endpoints, state)
        for post in self._post_schedule:
            if post.is_off:
                continue
            began = perf_counter()
            try:
                post.plugin.post_schedule(request, result, state)
            except Exception as error:
                post.failed(error, perf_counter() - began)
            else:
                post.passed(perf_counter() - began)
        return result

    def _decided(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> SchedulingResult:
        results: dict[str, ProfileResult] = {}
        seen = MappingProxyType(results)
        while names := self._next_profiles(request, seen, state):
            for name in names:
                results[name] = self.profiles[name].run(request, endpoints, state)
        if not results:
            raise ProfileLoopError(f"profile handler {self.handler.name!r} picked no profile")
        return self._processed(request, seen, state)

    def _next_profiles(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> Sequence[str]:
        guard = self._handler
        began = perf_counter()
        try:
            names = tuple(guard.plugin.pick_profiles(request, self.profiles, results, state))
        except Exception as error:
            raise self._handler_failed(error, perf_counter() - began) from error
        guard.passed(perf_counter() - began)
        for name in names:
            if name in results or name not in self.profiles:
                why = "has run already" if name in results else "does not exist"
                raise ProfileLoopError(
                    f"profile handler {self.handler.name!r} picked profile {name!r}, which {why}"
                )
        return names

    def _processed(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        guard = self._handler
        began = perf_counter()
        try:
            result = guard.plugin.process_results(request, results, state)
            primary = result.profiles.get(result.primary)
            has_endpoint = primary is not None and bool(primary.endpoints)
        except SchedulingError:
            guard.passed(perf_counter() - began)  # why no endpoint was found is its to say
            raise
        except Exception as error:
            raise self._handler_failed(error, perf_counter() - began) from error
        if not has_endpoint:
            broken = PluginContractError(
                f"profile handler {self.handler.name!r} answered with profile"
                f" {result.primary!r}, which has no endpoint"
            )
            raise self._handler_failed(broken, perf_counter() - began)
        guard.passed(perf_counter() - began)
        return result

    def _handler_failed(self, error: Exception, seconds: float) -> SchedulingError:
        """Count an exception of the handler; return what the caller is to see of it."""
        self._handler.failed(error, seconds)
        if isinstance(error, SchedulingError):
            return error
        return ProfileHandlerError(
            f"profile handler {self.handler.name!r} failed: {type(error).__name__}: {error}"
        )
