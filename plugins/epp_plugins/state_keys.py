"""Typed keys of the values that plugins share.

A plugin lists the keys that it needs in ``reads`` and the keys that it produces in ``writes``. A
producer with the key in ``default_for`` is added if none is configured. Values of a request have a
:class:`StateKey`, values of an endpoint an :class:`AttributeKey`. A consumer of a particular
producer reads the key with the producer's name; "" stands for the default producer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from epp.scheduling import AttributeKey, Endpoint, StateKey

if TYPE_CHECKING:
    from epp_plugins.predicted_time import RequestForecast

Modality = Literal["image", "video", "audio"]


@dataclass(frozen=True, slots=True)
class MultiModalFeature:
    """An image, a video or audio in a prompt."""

    modality: Modality
    hash: str
    """Hash of the content."""
    offset: int
    """Position of its first token in the prompt."""
    length: int
    """Number of its tokens."""


# Structs: one of each is created per request, which takes a third of creating a dataclass.


class TokenizedPrompt(msgspec.Struct):
    """One prompt, its tools first, as an array of 32-bit little-endian token ids."""

    data: bytes
    """Four bytes per token; the last token may be short and then ends in implied zeros."""
    count: int
    """Tokens in ``data``."""
    features: tuple[MultiModalFeature, ...] = ()
    """Media in the prompt, in their order."""


class PrefixMatches(msgspec.Struct):
    """How much of one prompt each endpoint already holds."""

    blocks: Mapping[str, int]
    """Prompt blocks held, by endpoint name; an absent name holds none."""
    total_blocks: int
    """Blocks in the prompt."""
    block_size: int
    """Tokens per block."""


@dataclass(slots=True)
class EncoderMatches:
    """How much of one request's media each endpoint has already encoded."""

    total_size: int
    """Size of all media of the request."""
    sizes: Mapping[str, int]
    """Size of the media held, by endpoint name; an absent name holds none."""


@dataclass(slots=True)
class UncachedTokens:
    """Tokens of one request that each endpoint would have to compute."""

    total: int
    """Tokens on an endpoint that has cached nothing of the prompt."""
    by_endpoint: Mapping[str, int] = field(default_factory=dict)
    """Tokens by the names of the endpoints that have cached a part of it."""


@dataclass(frozen=True, slots=True)
class InFlightLoad:
    """Requests and tokens in flight on an endpoint, including those that other replicas report."""

    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Topology:
    """Location of an endpoint; "" where unknown."""

    host: str = ""
    rack: str = ""
    zone: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True)
class LatencyPrediction:
    """Prediction for one request on one endpoint."""

    is_ttft_valid: bool
    """Whether the time to first token would be within the request's SLO."""
    is_tpot_valid: bool
    """Whether the time per output token would be within the request's SLO."""


TOKENIZED_PROMPT = StateKey[TokenizedPrompt]("tokenized-prompt")
PREFIX_MATCHES = StateKey[PrefixMatches]("prefix-matches")
PREFIX_RANKS = StateKey[Mapping[str, int]]("prefix-ranks")
"""Data-parallel rank, from 0, that holds most of the prompt, by endpoint name; no plugin writes it
yet."""
ENCODER_MATCHES = StateKey[EncoderMatches](
    "MultiModalEncoderCacheMatchInfoKey/mm-embeddings-cache-producer"
)
UNCACHED_TOKENS = StateKey[UncachedTokens]("UncachedRequestTokensDataKey/inflight-load-producer")
IN_FLIGHT_LOAD = AttributeKey[InFlightLoad]("InFlightLoadDataKey/inflight-load-producer")
SESSION_ID = StateKey[str]("SessionIDDataKey/session-id-producer")
AGENT_IDENTITY = StateKey[str]("agent-identity/")
LATENCY_PREDICTIONS = StateKey[Mapping[str, LatencyPrediction]](
    "LatencyPredictionInfoDataKey/predicted-latency-producer"
)
"""Predictions by endpoint name; no plugin writes them yet."""

PREDICTED_TIME = StateKey["RequestForecast"]("PredictedTime/predicted-time-producer")
"""Forecast of a request by the learned model of the fleet."""
TOPOLOGY = AttributeKey[Topology]("Topology/topology-extractor")
GPU_UTILIZATION = AttributeKey[float]("GPUUtilization/dcgm-extractor")
"""0.0 to 1.0."""

MULTICLUSTER_QUEUE_SIZE = AttributeKey[float]("llm-d.ai/multicluster-queue-size/")
"""Requests that wait at an endpoint of a cluster, on average; the endpoint is the cluster."""
MULTICLUSTER_KV_CACHE_UTILIZATION = AttributeKey[float](
    "llm-d.ai/multicluster-kv-cache-utilization/"
)
"""0.0 to 1.0, the average over a cluster's endpoints."""

PEER_ENDPOINT = StateKey[Endpoint]("peer-endpoint/disagg-profile-handler")
"""Endpoint of the previous stage; written by profile handlers with several stages."""
PREFILL_PROFILE = StateKey[str]("prefill-profile")
"""Name of the profile that chooses the prefill endpoint; written by profile handlers with such a
profile."""
DEFAULT_PREFILL_PROFILE: Final = "prefill"
"""Name of the prefill profile if no handler has written it."""

_DEFAULT_TIME_PRODUCER = "predicted-time-producer"
_DEFAULT_MATCH_PRODUCER = "approx-prefix-cache-producer"
_DEFAULT_ENCODER_PRODUCER = "mm-embeddings-cache-producer"
_DEFAULT_LOAD_PRODUCER = "inflight-load-producer"
_DEFAULT_TOPOLOGY_PRODUCER = "topology-extractor"


def prefix_matches_of(producer: str) -> StateKey[PrefixMatches]:
    """Return the key of the prefix matches of one producer."""
    own: StateKey[PrefixMatches] = StateKey(f"prefix-matches/{producer}")
    return PREFIX_MATCHES if producer in ("", _DEFAULT_MATCH_PRODUCER) else own


def encoder_matches_of(producer: str) -> StateKey[EncoderMatches]:
    """Return the key of the encoder matches of one producer."""
    return StateKey(f"MultiModalEncoderCacheMatchInfoKey/{producer or _DEFAULT_ENCODER_PRODUCER}")


def in_flight_load_of(producer: str) -> AttributeKey[InFlightLoad]:
    """Return the key of the load counted by one producer."""
    return AttributeKey(f"InFlightLoadDataKey/{producer or _DEFAULT_LOAD_PRODUCER}")


def uncached_tokens_of(producer: str) -> StateKey[UncachedTokens]:
    """Return the key of the uncached tokens counted by one producer."""
    return StateKey(f"UncachedRequestTokensDataKey/{producer or _DEFAULT_LOAD_PRODUCER}")


def topology_of(producer: str) -> AttributeKey[Topology]:
    """Return the key of the topology read by one extractor."""
    return AttributeKey(f"Topology/{producer or _DEFAULT_TOPOLOGY_PRODUCER}")


def attribute_of(attribute: str, producer: str | None) -> AttributeKey[float]:
    """Return the key of a numeric attribute named in a configuration.

    Args:
        attribute: Name of the attribute, or ``Name/producer`` if ``producer`` is None.
        producer: Plugin that writes it; None for ``core-metrics-extractor``, "" if the key names
            none.
    """
    if producer is None and "/" in attribute:
        return AttributeKey(attribute)
    return AttributeKey(f"{attribute}/{'core-metrics-extractor' if producer is None else producer}")


def predicted_time_of(producer: str) -> "StateKey[RequestForecast]":
    """Return the key of the forecasts of one producer."""
    return StateKey(f"PredictedTime/{producer or _DEFAULT_TIME_PRODUCER}")
