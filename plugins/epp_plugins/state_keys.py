"""Values that plugins share: one typed key each.

A consumer lists the keys it needs in the attribute ``reads``, a producer its own in ``reads`` and
``writes``; a producer with the key in ``default_for`` is made when nobody configured one. What
belongs to one request has a :class:`StateKey`, what belongs to an endpoint an
:class:`AttributeKey`. Consumers of one certain producer read the key that bears its name; "" stands
for the default producer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from epp.scheduling import AttributeKey, Endpoint, StateKey

Modality = Literal["image", "video", "audio"]


@dataclass(frozen=True, slots=True)
class MultiModalFeature:
    """A picture, a film or a sound in a prompt."""

    modality: Modality
    hash: str
    """The same for the same content."""
    offset: int
    """Tokens of the prompt before it."""
    length: int
    """Tokens that it takes."""


# The records are not frozen: one of each is made per request, and frozen ones take 0.4 us more.
@dataclass(slots=True)
class TokenizedPrompt:
    """One prompt, its tools first, as an array of 32-bit little-endian token ids."""

    data: bytes
    """Four bytes per token; the last token may be short and then ends in implied zeros."""
    count: int
    """Tokens in ``data``."""
    features: tuple[MultiModalFeature, ...] = ()
    """What in it is no text, in its order."""


@dataclass(slots=True)
class PrefixMatches:
    """How much of one prompt each endpoint already holds."""

    blocks: Mapping[str, int]
    """Prompt blocks held, by endpoint name; an absent name holds none."""
    total_blocks: int
    """Blocks in the prompt."""
    block_size: int
    """Tokens per block."""


@dataclass(slots=True)
class EncoderMatches:
    """How much of one request's media each endpoint has encoded already."""

    total_size: int
    """Of all its media."""
    sizes: Mapping[str, int]
    """Of those held, by endpoint name; an absent name holds none."""


@dataclass(slots=True)
class UncachedTokens:
    """Tokens of one request that each endpoint would have to compute."""

    total: int
    """Where nothing of it is cached."""
    by_endpoint: Mapping[str, int] = field(default_factory=dict)
    """By the names of the endpoints that hold a part of it."""


@dataclass(frozen=True, slots=True)
class InFlightLoad:
    """What this EPP has sent to an endpoint and does not know to be finished."""

    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Topology:
    """Where an endpoint runs; "" where nobody has said."""

    host: str = ""
    rack: str = ""
    zone: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True)
class LatencyPrediction:
    """What a predictor says of one request on one endpoint."""

    is_ttft_valid: bool
    """The first token would come within the request's SLO."""
    is_tpot_valid: bool
    """The tokens after it would."""


TOKENIZED_PROMPT = StateKey[TokenizedPrompt]("tokenized-prompt")
PREFIX_MATCHES = StateKey[PrefixMatches]("prefix-matches")
PREFIX_RANKS = StateKey[Mapping[str, int]]("prefix-ranks")
"""By endpoint name: the data-parallel rank, counted from 0, that holds most of the prompt; written
by nobody yet."""
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
"""By endpoint name; written by nobody yet."""

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
"""Where the stage chosen before runs; written by profile handlers with several stages."""
PREFILL_PROFILE = StateKey[str]("prefill-profile")
"""The profile whose endpoint computes the prompt before the primary one goes on; written by
profile handlers that have one, under whatever name."""
DEFAULT_PREFILL_PROFILE: Final = "prefill"
"""Its name where no handler has said."""

_DEFAULT_MATCH_PRODUCER = "approx-prefix-cache-producer"
_DEFAULT_ENCODER_PRODUCER = "mm-embeddings-cache-producer"
_DEFAULT_LOAD_PRODUCER = "inflight-load-producer"
_DEFAULT_TOPOLOGY_PRODUCER = "topology-extractor"


def prefix_matches_of(producer: str) -> StateKey[PrefixMatches]:
    """Return the key of one producer's own matches."""
    own: StateKey[PrefixMatches] = StateKey(f"prefix-matches/{producer}")
    return PREFIX_MATCHES if producer in ("", _DEFAULT_MATCH_PRODUCER) else own


def encoder_matches_of(producer: str) -> StateKey[EncoderMatches]:
    """Return the key of one producer's own matches."""
    return StateKey(f"MultiModalEncoderCacheMatchInfoKey/{producer or _DEFAULT_ENCODER_PRODUCER}")


def in_flight_load_of(producer: str) -> AttributeKey[InFlightLoad]:
    """Return the key of what one producer knows to be in flight."""
    return AttributeKey(f"InFlightLoadDataKey/{producer or _DEFAULT_LOAD_PRODUCER}")


def uncached_tokens_of(producer: str) -> StateKey[UncachedTokens]:
    """Return the key of one producer's own count."""
    return StateKey(f"UncachedRequestTokensDataKey/{producer or _DEFAULT_LOAD_PRODUCER}")


def topology_of(producer: str) -> AttributeKey[Topology]:
    """Return the key of what one extractor has found out."""
    return AttributeKey(f"Topology/{producer or _DEFAULT_TOPOLOGY_PRODUCER}")


def attribute_of(attribute: str, producer: str | None) -> AttributeKey[float]:
    """Return the key of a number that a configuration names, as the reference spells it.

    Args:
        attribute: Its name, or ``Name/producer`` where ``producer`` is None.
        producer: Who writes it; None for ``core-metrics-extractor``, "" for a key without one.
    """
    if producer is None and "/" in attribute:
        return AttributeKey(attribute)
    return AttributeKey(f"{attribute}/{'core-metrics-extractor' if producer is None else producer}")
