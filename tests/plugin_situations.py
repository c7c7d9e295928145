"""Arbitrary inputs of plugins: endpoints, requests and states, complete or empty."""

import random
from base64 import b64encode
from collections.abc import Mapping
from inspect import signature
from math import inf, nan
from typing import Any, Final, NamedTuple, TypeVar

from hypothesis import strategies as st

from epp.scheduling import (
    AttributeKey,
    CycleState,
    Endpoint,
    EndpointMetrics,
    LLMRequest,
    Plugin,
    StateKey,
)
from epp.testing import make_plugin, make_request
from epp_plugins import PLUGINS
from epp_plugins.filters.least_queue import LeastQueueFilter
from epp_plugins.state_keys import (
    ENCODER_MATCHES,
    GPU_UTILIZATION,
    IN_FLIGHT_LOAD,
    LATENCY_PREDICTIONS,
    MULTICLUSTER_KV_CACHE_UTILIZATION,
    MULTICLUSTER_QUEUE_SIZE,
    PEER_ENDPOINT,
    PREFILL_PROFILE,
    PREFIX_MATCHES,
    SESSION_ID,
    TOKENIZED_PROMPT,
    TOPOLOGY,
    UNCACHED_TOKENS,
    EncoderMatches,
    InFlightLoad,
    LatencyPrediction,
    PrefixMatches,
    TokenizedPrompt,
    Topology,
    UncachedTokens,
    attribute_of,
)

P = TypeVar("P", bound=Plugin)

ATTRIBUTE: Final = "heat"
"""Attribute that endpoints may have, of the default extractor."""
LABEL: Final = "tier"
"""Label that endpoints may have."""
HEADER: Final = "x-tier"
"""Header that requests may have, with a value of the label."""

_NAMES = tuple(f"default/pod-{number}" for number in range(5))
_COUNTS = st.integers(-10, 200) | st.sampled_from([10**6, 10**18, -(10**18), 2.5])
_SHARES = st.floats(0.0, 1.0) | st.sampled_from([nan, inf, -inf, -0.5, 1.5, 1e300])
_NUMBERS = st.floats() | st.integers(-(10**18), 10**18)
_TOKENS = st.integers(-100, 2000) | st.sampled_from([10**9, 10**18])
_ADAPTERS = st.frozensets(st.sampled_from(["llama", "tuned", "other"]))
_PLACES = st.sampled_from(["", "1", "2"])

_LABELS = st.fixed_dictionaries(
    {},
    optional={
        LABEL: st.sampled_from(["gold", "silver", ""]),
        "llm-d.ai/role": st.sampled_from(["decode", "prefill", "encode", "both", "other"]),
        "llm-d.ai/context-length-range": st.sampled_from(
            ["0-2048", "2048-8192", "7-7", "9-1", "", "many"]
        ),
    },
)
_PAGES = st.builds(
    EndpointMetrics,
    waiting_requests=_COUNTS,
    running_requests=_COUNTS,
    kv_cache_usage=_SHARES,
    active_adapters=_ADAPTERS,
    waiting_adapters=_ADAPTERS,
    max_adapters=st.integers(-1, 4),
    cache_block_size=st.integers(-1, 64),
    cache_blocks=st.integers(-1, 64),
    prompt_tokens=st.integers(0, 10**6),
    prompts=st.integers(0, 100),
    requested_at=st.none() | st.floats(0.0, 100.0),
)
_ATTRIBUTES: st.SearchStrategy[dict[AttributeKey[Any], Any]] = st.fixed_dictionaries(
    {},
    optional={
        IN_FLIGHT_LOAD: st.builds(InFlightLoad, requests=_TOKENS, tokens=_TOKENS),
        TOPOLOGY: st.builds(Topology, host=_PLACES, rack=_PLACES, zone=_PLACES, region=_PLACES),
        GPU_UTILIZATION: _SHARES,
        MULTICLUSTER_KV_CACHE_UTILIZATION: _NUMBERS,
        MULTICLUSTER_QUEUE_SIZE: _NUMBERS,
        attribute_of(ATTRIBUTE, None): _NUMBERS,
    },
)
_HEADERS = st.fixed_dictionaries(
    {},
    optional={
        HEADER: st.sampled_from(["gold", "silver", ""]),
        "x-session-id": st.sampled_from(["s-1", ""]),
        "x-session-token": st.sampled_from(
            ["!", *(b64encode(name.encode()).decode() for name in _NAMES)]
        ),
        "test-epp-endpoint-selection": st.sampled_from(["10.0.0.1", "10.0.0.2:8000, 10.0.0.3", ""]),
    },
)


class Situation(NamedTuple):
    """What one call of a plugin is about."""

    request: LLMRequest
    endpoints: list[Endpoint]
    state: CycleState


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Return one to five endpoints, with pages that are true, stale or absurd, and a request."""
    names = _NAMES[: draw(st.integers(1, len(_NAMES)))]
    endpoints = [draw(_endpoints(name, number)) for number, name in enumerate(names)]
    request = make_request(
        target_model=draw(st.sampled_from(["llama", "tuned", ""])),
        headers=draw(_HEADERS),
        priority=draw(st.integers(-2, 2)),
    )
    return Situation(request, endpoints, draw(_states(endpoints)))


@st.composite
def _endpoints(draw: st.DrawFn, name: str, number: int) -> Endpoint:
    endpoint = Endpoint(
        name,
        f"10.0.0.{number // 2 + 1}:{8000 + number % 2}",  # several ports of one address
        draw(_LABELS),
        draw(_PAGES),
        attributes=draw(_ATTRIBUTES),
    )
    for _ in range(draw(st.integers(0, 2))):
        endpoint.load.start(0.0)
    if draw(st.booleans()):  # else nobody has taken note of the page
        waiting, running = draw(_COUNTS), draw(_COUNTS)
        endpoint.load.assume(waiting=waiting, running=running, kv_cache_usage=draw(_SHARES))
    return endpoint


@st.composite
def _states(draw: st.DrawFn, endpoints: list[Endpoint]) -> CycleState:
    names = st.sampled_from(_NAMES)  # also of endpoints that are no candidates
    total = draw(st.integers(0, 10))
    values: dict[StateKey[Any], Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                TOKENIZED_PROMPT: st.builds(
                    TokenizedPrompt, data=st.just(b""), count=st.integers(0, 10_000)
                ),
                PREFIX_MATCHES: st.builds(
                    PrefixMatches,
                    blocks=st.dictionaries(names, st.integers(0, total)),
                    total_blocks=st.just(total),
                    block_size=st.sampled_from([0, 64, 10**9]),
                ),
                ENCODER_MATCHES: st.builds(
                    EncoderMatches, total_size=_TOKENS, sizes=st.dictionaries(names, _TOKENS)
                ),
                UNCACHED_TOKENS: st.builds(
                    UncachedTokens, total=_TOKENS, by_endpoint=st.dictionaries(names, _TOKENS)
                ),
                SESSION_ID: st.sampled_from(["s-1", ""]),
                PEER_ENDPOINT: st.sampled_from(endpoints),
                PREFILL_PROFILE: st.sampled_from(["prefill", "compute"]),
                LATENCY_PREDICTIONS: st.dictionaries(
                    names, st.builds(LatencyPrediction, st.booleans(), st.booleans())
                ),
            },
        )
    )
    state = CycleState()
    for key, value in values.items():
        state.write(key, value)
    return state


def make_registered(kind: str, parameters: Mapping[str, Any], wanted: type[P]) -> P:
    """Return a plugin of ``PLUGINS`` by its type, with whatever services it asks for."""
    (found,) = (each for each in PLUGINS if each.type == kind)
    services: dict[str, Any] = {
        "rng": random.Random(0),
        "clock": lambda: 0.0,
        "refer": lambda name, _: make_plugin(LeastQueueFilter, name=name),
    }
    asked = {key: services[key] for key in services if key in signature(found).parameters}
    plugin = make_plugin(found, parameters, **asked)
    assert isinstance(plugin, wanted)
    return plugin


def is_random(kind: str) -> bool:
    """Return whether plugins of this type draw lots."""
    (found,) = (each for each in PLUGINS if each.type == kind)
    return "rng" in signature(found).parameters
