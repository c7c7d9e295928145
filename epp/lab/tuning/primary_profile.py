"""Which profile of a configuration chooses the server of a request.

A search varies this profile. Only the configuration's profile handler knows it, so the handler is
asked about a plain completion, as if each profile that it wants to run had found a server. Names
do not tell: a handler may call its decode profile anything.
"""

from epp.scheduling import (
    PLUGIN_FAULTS,
    CycleState,
    Endpoint,
    LLMRequest,
    ProfileResult,
    Scheduler,
    ScoredEndpoint,
)

_REQUEST = LLMRequest(
    request_id="tune",
    target_model="model",
    model="model",
    path="/v1/completions",
    prompt=b'"a plain completion"',
)
_SERVER = ScoredEndpoint(Endpoint(name="server", address="192.0.2.1:80"), 1.0)


def primary_profile(scheduler: Scheduler) -> str | None:
    """Return the name of the profile that a plain completion is sent by.

    Returns None if the handler cannot tell: it fails, or names a profile that does not exist.

    Args:
        scheduler: The scheduler of the configuration.
    """
    results: dict[str, ProfileResult] = {}
    state = CycleState()
    try:
        while names := _next(scheduler, results, state):
            for name in names:
                results[name] = ProfileResult(name, endpoints=[_SERVER], scored=[_SERVER])
        primary = scheduler.handler.process_results(_REQUEST, results, state).primary
    except PLUGIN_FAULTS:
        return None
    return primary if primary in results else None


def _next(scheduler: Scheduler, results: dict[str, ProfileResult], state: CycleState) -> list[str]:
    """Return the profiles that the handler wants to run next, without those that have run."""
    picked = scheduler.handler.pick_profiles(_REQUEST, scheduler.profiles, results, state)
    return [name for name in picked if name in scheduler.profiles and name not in results]
