"""Optional stages of profile handlers, with their counters and headers.

A stage is a profile, in addition to the primary one, that runs if its decider chooses it. If a
stage fails, the request continues without it, which is counted. Headers send the endpoints of
stages to the model server; a client's headers of these names are removed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from epp.observability.plugins import PluginMetrics
from epp.scheduling import (
    PLUGIN_FAULTS,
    CycleState,
    DroppedError,
    Endpoint,
    LLMRequest,
    NoEndpointsError,
    PluginContractError,
    ProfileHandler,
    ProfileLoopError,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
    StageDecider,
)
from epp_plugins.request_headers import set_header

PREFILL_HEADER: Final = "x-prefiller-host-port"
ENCODERS_HEADER: Final = "x-encoder-hosts-ports"
RANK_HEADER: Final = "x-data-parallel-host-port"

Reason = Literal["no-endpoints", "dropped", "error", "no-profile", "decider-error"]
"""Why a request continues without a stage: its filters left no endpoint, a filter dropped the
request, the stage failed otherwise, its profile is not configured, or its decider raised."""

Refer = Callable[[str, type[StageDecider]], StageDecider]
"""Returns the decider with a name."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A stage in addition to the primary profile."""

    name: Literal["prefill", "encode"]
    profile: str
    """Name of the profile that it runs."""
    decider: StageDecider | None = None
    """Decides which requests go through the stage; None if no request does."""


class OptionalStages:
    """Calls the deciders of one handler, and counts the stages that requests continue without."""

    def __init__(self, handler: ProfileHandler, metrics: PluginMetrics) -> None:
        self._handler = handler
        self._logged_deciders: set[str] = set()
        """Deciders whose failure was logged."""
        self._warned: set[tuple[str, Reason]] = set()
        """Stages and reasons that were logged."""
        self._degraded = metrics.counter(
            handler,
            "disagg_degraded_total",
            "Requests that went on without a stage they were meant to go through, by stage and"
            " reason (no-endpoints, dropped, error, no-profile, decider-error).",
            ("stage", "reason"),
        )

    def wants(
        self,
        stage: Stage,
        request: LLMRequest,
        endpoint: Endpoint | None,
        profiles: Mapping[str, SchedulerProfile],
        state: CycleState,
    ) -> bool:
        """Return whether to run ``stage``; ``endpoint`` is the primary one, if already chosen."""
        if stage.decider is None:
            return False
        try:
            is_wanted = stage.decider.wants_stage(request, endpoint, state)
            if not isinstance(is_wanted, bool):
                raise PluginContractError(f"wants_stage() returned {is_wanted!r}, no bool")
        except PLUGIN_FAULTS:
            self.degraded(stage, "decider-error")
            if stage.decider.name not in self._logged_deciders:
                self._logged_deciders.add(stage.decider.name)
                _log.exception(
                    "stage decider failed",
                    plugin=stage.decider.name,
                    plugin_type=stage.decider.type,
                    profile_handler=self._handler.name,
                )
            return False
        if is_wanted and stage.profile not in profiles:
            self.degraded(stage, "no-profile")
            return False
        return is_wanted

    def degraded(self, stage: Stage, reason: Reason) -> None:
        """Count a request that continues without ``stage``; log the first for each reason."""
        self._degraded.inc(stage.name, reason)
        if (stage.name, reason) not in self._warned:
            self._warned.add((stage.name, reason))
            _log.warning(
                "stage left out, requests go on without it",
                stage=stage.name,
                reason=reason,
                profile=stage.profile,
                profile_handler=self._handler.name,
            )

    def outcome(
        self, stage: Stage, results: Mapping[str, ProfileResult]
    ) -> Mapping[str, ProfileResult]:
        """Return the result of ``stage`` by its profile; empty if it did not run or failed."""
        result = results.get(stage.profile)
        if result is None:
            return {}
        if result.endpoints:
            return {stage.profile: result}
        self.degraded(stage, _reason_of(result))
        return {}


def _reason_of(result: ProfileResult) -> Reason:
    if isinstance(result.error, NoEndpointsError):
        return "no-endpoints"
    return "dropped" if isinstance(result.error, DroppedError) else "error"


def check_profile(
    handler: ProfileHandler,
    parameter: str,
    profile: str,
    profiles: Mapping[str, SchedulerProfile],
) -> None:
    """Check that a required profile is configured.

    Raises:
        ProfileLoopError: The profile is missing.
    """
    for text in missing_profile(parameter, profile, profiles):
        raise ProfileLoopError(f"profile handler {handler.name!r} ({handler.type}): {text}")


def missing_profile(parameter: str, profile: str, profiles: Collection[str]) -> tuple[str, ...]:
    """Return an error text if a required profile is missing; else ()."""
    if profile in profiles:
        return ()
    known = ", ".join(map(repr, sorted(profiles))) or "none"
    mend = f"name one of them, or add a profile {profile!r}"
    return (f"{parameter} is {profile!r}; configured: {known}; {mend}",)


def unused_profiles(profiles: Collection[str], ours: Sequence[str]) -> list[str]:
    """Return a warning for each of ``profiles`` that no stage uses."""
    stages = ", ".join(map(repr, ours))
    return [
        f"profile {name!r} is never run; the stages have {stages}"
        for name in sorted(set(profiles) - set(ours))
    ]


def set_stage_headers(
    request: LLMRequest,
    result: SchedulingResult,
    state: CycleState,
    *,
    prefill: str,
    encode: str,
) -> None:
    """Set the headers with the best endpoint of ``prefill`` and all endpoints of ``encode``."""
    chosen = result.profiles.get(prefill)
    address = chosen.endpoints[0].endpoint.address if chosen and chosen.endpoints else ""
    set_header(request, state, PREFILL_HEADER, address)
    chosen = result.profiles.get(encode)
    addresses = ",".join([each.endpoint.address for each in chosen.endpoints]) if chosen else ""
    set_header(request, state, ENCODERS_HEADER, addresses)
