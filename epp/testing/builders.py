"""Builders of endpoints, requests, cycle states and profiles."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from epp.scheduling import (
    AttributeKey,
    CycleState,
    Endpoint,
    EndpointMetrics,
    Filter,
    GuardRails,
    LLMRequest,
    NullObserver,
    Picker,
    Plugin,
    SchedulerProfile,
    ScoredEndpoint,
    Scorer,
    StateKey,
    WeightedScorer,
)


def make_endpoint(
    name: str = "default/pod-0",
    *,
    address: str = "10.0.0.1:8000",
    labels: Mapping[str, str] | None = None,
    waiting_requests: int = 0,
    running_requests: int = 0,
    kv_cache_usage: float = 0.0,
    in_flight: int = 0,
    slots: float = 0,
    active_adapters: Iterable[str] = (),
    waiting_adapters: Iterable[str] = (),
    max_adapters: int = 0,
    cache_block_size: int = 0,
    cache_blocks: int = 0,
    prompt_tokens: int = 0,
    prompts: int = 0,
    requested_at: float | None = None,
    attributes: Mapping[AttributeKey[Any], Any] | None = None,
) -> Endpoint:
    """Return an endpoint with scraped metrics and the load that follows from them.

    ``in_flight`` requests were sent at time 0, after the scrape, and add to its numbers.
    ``attributes`` are values that extractors would write.
    """
    endpoint = Endpoint(
        name,
        address,
        dict(labels or {}),
        EndpointMetrics(
            waiting_requests=waiting_requests,
            running_requests=running_requests,
            kv_cache_usage=kv_cache_usage,
            active_adapters=frozenset(active_adapters),
            waiting_adapters=frozenset(waiting_adapters),
            max_adapters=max_adapters,
            cache_block_size=cache_block_size,
            cache_blocks=cache_blocks,
            prompt_tokens=prompt_tokens,
            prompts=prompts,
            requested_at=requested_at,
        ),
        attributes=dict(attributes or {}),
    )
    load = endpoint.load
    load.slots = slots
    load.assume(waiting=waiting_requests, running=running_requests, kv_cache_usage=kv_cache_usage)
    for _ in range(in_flight):
        load.start(0.0)
    return endpoint


def make_endpoints(table: Mapping[str, Mapping[str, Any]]) -> list[Endpoint]:
    """Return one endpoint per row; a row has the arguments of :func:`make_endpoint` by name."""
    return [make_endpoint(name, **row) for name, row in table.items()]


def make_request(
    request_id: str = "request-0",
    *,
    target_model: str = "llama",
    model: str = "",
    path: str = "/v1/completions",
    headers: Mapping[str, str] | None = None,
    prompt: bytes = b"",
    cache_salt: str = "",
    stream: bool = False,
    max_output_tokens: int | None = None,
    priority: int = 0,
) -> LLMRequest:
    """Return a request whose ``body_bytes`` is the length of the prompt."""
    return LLMRequest(
        request_id=request_id,
        target_model=target_model,
        model=model or target_model,
        path=path,
        headers=dict(headers or {}),
        prompt=prompt,
        cache_salt=cache_salt,
        stream=stream,
        max_output_tokens=max_output_tokens,
        body_bytes=len(prompt),
        priority=priority,
    )


def make_scored(scores: Mapping[str, float]) -> list[ScoredEndpoint]:
    """Return one idle endpoint per name, in that order, with its total score."""
    return [ScoredEndpoint(make_endpoint(name), score) for name, score in scores.items()]


def make_state(values: Mapping[StateKey[Any], Any] | None = None) -> CycleState:
    """Return the state of a request for which ``values`` have been produced."""
    state = CycleState()
    for key, value in (values or {}).items():
        state.write(key, value)
    return state


def make_profile(
    *,
    filters: Sequence[Filter] = (),
    scorers: Sequence[Scorer | WeightedScorer] = (),
    picker: Picker | None = None,
    name: str = "default",
) -> SchedulerProfile:
    """Return a profile; the default picker picks all remaining endpoints, best first.

    A scorer has weight 1 unless it is a :class:`WeightedScorer`. In production the profile ignores
    a plugin that raises or breaks its contract; here the error is raised.
    """
    return SchedulerProfile(
        name=name,
        filters=filters,
        scorers=[
            each if isinstance(each, WeightedScorer) else WeightedScorer(each, 1.0)
            for each in scorers
        ],
        picker=picker or _BestFirst(),
        guards=GuardRails(observer=_Strict()),
    )


class _BestFirst(Picker):
    """Picks all endpoints, best first; equal ones in the order of the pool."""

    type: ClassVar[str] = "best-first"
    name = "best-first"

    def pick(
        self, request: LLMRequest, scored: Sequence[ScoredEndpoint], state: CycleState
    ) -> list[ScoredEndpoint]:
        return sorted(scored, key=attrgetter("score"), reverse=True)


class _Strict(NullObserver):
    """Raises the errors of plugins."""

    def plugin_failed(self, extension_point: str, plugin: Plugin, error: Exception) -> None:
        raise error

    def scores_corrected(self, plugin: Plugin, outside: int, not_numbers: int) -> None:
        raise AssertionError(
            f"scorer {plugin.name!r} returned {outside} scores outside of [0, 1] and {not_numbers}"
            " that are NaN"
        )
