"""Builders of the framework's nouns, for the tests of plugin authors.

Every argument has a default, so a test says only what it is about::

    endpoints = [make_endpoint("a", waiting_requests=7), make_endpoint("b")]
    scores = QueueScorer("queue", Params()).score(make_request(), endpoints, CycleState())
"""

from collections.abc import Iterable, Mapping

from epp.scheduling import Endpoint, EndpointMetrics, LLMRequest, ScoredEndpoint


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
    requested_at: float | None = None,
) -> Endpoint:
    """Return an endpoint with a page and the load that follows from it.

    ``in_flight`` requests were sent there at time 0, after the page: they come on top of it.
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
            requested_at=requested_at,
        ),
    )
    load = endpoint.load
    load.slots = slots
    load.assume(waiting=waiting_requests, running=running_requests, kv_cache_usage=kv_cache_usage)
    for _ in range(in_flight):
        load.start(0.0)
    return endpoint


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
    """Return a request; its body is taken to be no more than the prompt."""
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
