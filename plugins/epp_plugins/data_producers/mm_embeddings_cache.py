"""``mm-embeddings-cache-producer``: estimates which endpoints have cached a prompt's media.

The producer assumes that an endpoint holds the embeddings of the most recent images, videos and
audio sent to it, so that a request with the same media can go there again. It uses the media items
that ``token-producer`` found, each weighted by its number of tokens, at least 1. Without that
producer it reads the media of chat messages (``image_url``, ``video_url``, ``audio_url``,
``input_audio``), each with the weight 1. An item is identified by its URL or its data. Duplicates
in a request count once.

A request's media are recorded for the endpoint that the primary profile picks, when it picks it; as
in the Go EPP, not for the endpoint of an encode profile.

Each media item is assumed to take 2 MiB, so the producer remembers ``cacheSizeInMBPerServer / 2``
items for each endpoint, 2048 by default, and at least one. For all endpoints together it remembers
at most 131,072 items (about 16 MB of the endpoint picker's memory), divided equally. Of one request
the first 256 different items are recorded; with more than 32 endpoints only the first ``8192 /
number of endpoints`` of them are compared.

Counters: ``encoder_cache_queries_total`` by ``modality`` (media of requests) and
``encoder_cache_hits_total`` by ``pod`` and ``modality`` (those that the chosen endpoint held; the
Go EPP counts each endpoint that holds an item); the histogram ``encoder_cache_hit_ratio``, the
weighted share of a request's media that the endpoint held; the gauge ``encoder_cache_entries``.

Reads:  ``TOKENIZED_PROMPT`` if a plugin writes it; else ``request.prompt``.
Writes: ``ENCODER_MATCHES``; a plugin with a name other than its type writes its own key instead,
        for plugins that name it in ``producerName``; nothing for a request without media.
Example::

    plugins:
      - type: mm-embeddings-cache-producer
        parameters: {cacheSizeInMBPerServer: 8192}
      - type: mm-embeddings-cache-scorer
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
from xxhash import xxh3_64_intdigest

from epp.data_layer.plugins import EndpointListener
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control.plugins import DataProducer, PreRequest
from epp.scheduling import CycleState, Endpoint, LLMRequest, SchedulingResult, StateKey
from epp_plugins.data_producers.media import Image, Video
from epp_plugins.data_producers.media_index import MediaIndex
from epp_plugins.data_producers.media_parts import MediaPrompt
from epp_plugins.state_keys import (
    ENCODER_MATCHES,
    TOKENIZED_PROMPT,
    EncoderMatches,
    Modality,
    MultiModalFeature,
    encoder_matches_of,
)

DEFAULT_CACHE_MIB: Final = 4096
MEDIUM_MIB: Final = 2
"""Assumed size of the embeddings of one medium."""
MAX_MEDIA: Final = 256
"""Maximum different media of one request that count."""
_DUMPED_ENDPOINTS: Final = 100
# Static mode: the size does not matter here, so image data is not read.
_IMAGE = Image(mode="static")
_VIDEO = Video()
_LIST = ord("[")


_HIT_RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of ``mm-embeddings-cache-producer``."""

    cache_size_mib: int = msgspec.field(default=DEFAULT_CACHE_MIB, name="cacheSizeInMBPerServer")
    """Assumed size of an endpoint's cache of embeddings in MiB; each medium takes 2. 0 and less
    count as 4096."""


class _Medium(msgspec.Struct, gc=False):
    """One medium of a request."""

    size: int
    modality: Modality


class MmEmbeddingsCacheProducer(DataProducer, PreRequest, EndpointListener):
    """Records which media were sent to which endpoint."""

    type: ClassVar[str] = "mm-embeddings-cache-producer"
    keeps_result: ClassVar[bool] = True
    optional_reads: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)
    default_for: ClassVar[tuple[StateKey[Any], ...]] = (ENCODER_MATCHES,)

    def __init__(
        self, name: str, params: Params, *, metrics: PluginMetrics = NO_PLUGIN_METRICS
    ) -> None:
        self.name = name
        size_mib = params.cache_size_mib if params.cache_size_mib > 0 else DEFAULT_CACHE_MIB
        self.index = MediaIndex(max(1, size_mib // MEDIUM_MIB))
        self._matches = encoder_matches_of(name)
        # Set per instance, unlike the keys of most plugins: it depends on its name.
        self.writes: tuple[StateKey[Any], ...] = (self._matches,)  # type: ignore[misc]
        self._media = StateKey[dict[int, _Medium]](f"media-of-prompt/{name}")
        self._queries = metrics.counter(
            self, "encoder_cache_queries_total", "Media of requests looked up.", ["modality"]
        )
        self._hits = metrics.counter(
            self,
            "encoder_cache_hits_total",
            "Media of requests that the chosen endpoint was taken to hold.",
            ["pod", "modality"],
        )
        self._hit_ratio = metrics.histogram(
            self,
            "encoder_cache_hit_ratio",
            "Share of a request's media, by size, that the chosen endpoint was taken to hold.",
            _HIT_RATIOS,
        )
        metrics.gauge(
            self, "encoder_cache_entries", "Media kept, summed over the endpoints.", self._entries
        )

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        prompt = state.read(TOKENIZED_PROMPT)
        if prompt is not None:
            media = _by_hash(prompt.features, is_sized=True)
        elif request.prompt and request.prompt[0] == _LIST and b"_" in request.prompt:
            read = MediaPrompt(request, _IMAGE, _VIDEO).read()
            media = {} if read is None else _by_hash(read.features, is_sized=False)
        else:
            return
        if media:
            state.write(self._media, media, until_sent=True)

    def attach(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        media = state.read(self._media)
        if media is None:
            return
        sizes = {
            endpoint.name: sum([media[each].size for each in held])
            for endpoint, held in self.index.match(endpoints, media).items()
        }
        total = sum([medium.size for medium in media.values()])
        state.write(self._matches, EncoderMatches(total, sizes))

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        media = state.read(self._media)
        if media is None:
            return
        endpoint = result.endpoints[0].endpoint
        held = self.index.match([endpoint], media).get(endpoint, ())
        pod = endpoint.name.rpartition("/")[2]
        for medium in media.values():
            self._queries.inc(medium.modality)
        for each in held:
            self._hits.inc(pod, media[each].modality)
        total = sum([medium.size for medium in media.values()])
        self._hit_ratio.observe(sum([media[each].size for each in held]) / total)
        self.index.add(endpoint, media)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self.index.add_endpoint(endpoint)

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        self.index.remove_endpoint(endpoint)

    def dump_state(self) -> Mapping[str, object]:
        return {
            "entries": self.index.entries(),
            "max_entries_of_endpoint": self.index.capacity,
            "entries_by_endpoint": self.index.largest(_DUMPED_ENDPOINTS),
        }

    def _entries(self) -> Mapping[tuple[str, ...], float]:
        return {(): self.index.entries()}


def _by_hash(features: Iterable[MultiModalFeature], *, is_sized: bool) -> dict[int, _Medium]:
    """Return the first :data:`MAX_MEDIA` different media, by hash."""
    media: dict[int, _Medium] = {}
    for feature in features:
        # Hashed again: a renderer's hash may have any length.
        key = xxh3_64_intdigest(feature.hash.encode("utf-8", "surrogatepass"))
        if key not in media:
            if len(media) == MAX_MEDIA:
                break
            size = max(1, feature.length) if is_sized else 1
            media[key] = _Medium(size, feature.modality)
    return media
