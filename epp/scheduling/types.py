"""The data types of scheduling: request, endpoint, scored endpoint, results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, overload

from epp.scheduling.errors import SchedulingError
from epp.scheduling.keys import AttributeKey
from epp.scheduling.load import EndpointLoad

if TYPE_CHECKING:  # at run time this package needs nothing but the standard library
    from typing_extensions import TypeVar
else:
    from typing import TypeVar

T = TypeVar("T")

ScoreColumns = tuple[Sequence[tuple[str, float]], Sequence[Sequence[float]]]
"""Names and weights of some scorers, and for each of them a column of scores in [0, 1]."""

NO_SCORES: Final[ScoreColumns] = ((), ())


# Not frozen: making a frozen one takes six times as long (6.1 us, not 0.9), for every page.
@dataclass(slots=True, unsafe_hash=True)
class EndpointMetrics:
    """The values of one scrape of a model server (GIE model server protocol, proposal 003).

    They are replaced as a whole, by the next scrape, and never changed.
    """

    waiting_requests: int = 0
    """Requests queued in the server, not yet running."""
    running_requests: int = 0
    """Requests in the server's current batch."""
    kv_cache_usage: float = 0.0
    """Fraction of KV-cache blocks in use, 0.0 to 1.0."""
    active_adapters: frozenset[str] = frozenset()
    """LoRA adapters with running requests."""
    waiting_adapters: frozenset[str] = frozenset()
    """LoRA adapters with queued requests only."""
    max_adapters: int = 0
    """LoRA adapters that fit at once; 0 when the server serves none."""
    cache_block_size: int = 0
    """Tokens in one KV-cache block; 0 when unknown."""
    cache_blocks: int = 0
    """KV-cache blocks of the server; 0 when unknown."""
    requested_at: float | None = None
    """When the scrape's GET was sent, or a newer load report arrived, in seconds of the clock; None
    when never scraped."""
    prompt_tokens: int = 0
    """Tokens of all prompts since the server's start; 0 when unknown."""
    prompts: int = 0
    """Number of those prompts, each counted with its first generated token; 0 when unknown."""
    has_load: bool = True
    """Whether the page had the waiting and running requests; otherwise they, and ``requested_at``,
    are those of an earlier page."""

    def requested(self, at: float) -> "EndpointMetrics":
        """Return the same values, of a page requested at another time."""
        # Takes half as long as dataclasses.replace(), for every page of every idle endpoint.
        return EndpointMetrics(
            self.waiting_requests,
            self.running_requests,
            self.kv_cache_usage,
            self.active_adapters,
            self.waiting_adapters,
            self.max_adapters,
            self.cache_block_size,
            self.cache_blocks,
            at,
            self.prompt_tokens,
            self.prompts,
            self.has_load,
        )


NEVER_SCRAPED = EndpointMetrics()
"""Metrics of an endpoint that has not been scraped yet."""


# eq=False: endpoints hash by identity. Hashing a frozen dataclass by value made the same weighted
# sum over 100 endpoints and 4 scorers 5 times slower (158 us against 29 us, Python 3.11).
@dataclass(slots=True, eq=False, weakref_slot=True)
class Endpoint:
    """One model server that requests can be sent to."""

    name: str
    """``namespace/name``, unique in the pool."""
    address: str
    """``ip:port``, an IPv6 address in brackets, as the gateway gets it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    metrics: EndpointMetrics = NEVER_SCRAPED
    """The last scrape; scrapers replace it and never change it in place."""
    load: EndpointLoad = field(default_factory=EndpointLoad)
    """The effective load, which scorers read: the scrape corrected by the requests of all EPPs."""
    attributes: dict[AttributeKey[Any], Any] = field(default_factory=dict)
    """Further values of extractors; a value is replaced, never changed in place."""
    incarnation: str = ""
    """Differs for a server that has taken the name of another one; "" if unknown."""
    node_address: str = ""
    """IP address of the node that it runs on; "" if unknown."""
    responses: list[int] = field(default_factory=lambda: [0] * 10)
    """Requests that have ended by the first digit of the response's status; 0 for no response."""
    retries: int = 0
    """Requests sent here that the gateway then had another endpoint serve."""
    awaited: int = 0
    """Streamed requests in flight here whose response has not begun."""
    heads: int = 0
    """Responses that have begun, without those with status 5xx."""
    is_draining: bool = False
    """Whether it gets no new requests, because its label or an operator says so; those in flight
    continue."""
    is_watched: bool = False
    """Whether outlier detection reads the status of every response, not only 5xx."""

    def attribute(self, key: AttributeKey[T]) -> T | None:
        """Return the attribute ``key``, or None when no extractor wrote it."""
        value: T | None = self.attributes.get(key)
        return value


@dataclass(slots=True, eq=False)
class LLMRequest:
    """One inference request, with the fields that scheduling needs."""

    request_id: str
    target_model: str
    """Model name sent to the server: the base model or a LoRA adapter; "" when there is none."""
    model: str = ""
    """Model name that the client sent; differs from ``target_model`` after a rewrite."""
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers by lower-case name."""
    prompt: bytes = b""
    """The prompt's raw JSON: the value of ``prompt`` or ``messages``; empty without a body, and
    once the request is sent on."""
    tools: bytes = b""
    """The raw JSON of the tools that the model may call; empty without any, and with ``prompt``."""
    cache_salt: str = ""
    stream: bool = False
    max_output_tokens: int | None = None
    body_bytes: int = 0
    priority: int = 0
    """At least 0 is critical, below 0 sheddable."""
    fairness_id: str = ""
    """Its flow; "" until it is set."""
    template: bytes = b""
    """The raw JSON members of the body that control how its messages become a prompt
    (``"chat_template_kwargs":{...},...``); empty without any, and with ``prompt``."""


if TYPE_CHECKING:
    RequestT = TypeVar("RequestT", default=LLMRequest)
    EndpointT = TypeVar("EndpointT", default=Endpoint)
else:  # without a default before Python 3.13
    RequestT = TypeVar("RequestT")
    EndpointT = TypeVar("EndpointT")


def name_of(endpoint: object) -> str:
    """Return the ``name`` of an endpoint of any class, or else its str()."""
    name = getattr(endpoint, "name", None)
    return name if isinstance(name, str) else str(endpoint)


@dataclass(slots=True, eq=False)
class ScoredEndpoint(Generic[EndpointT]):
    """An endpoint and its weighted total score."""

    endpoint: EndpointT
    score: float


class ScoredEndpoints(Sequence[ScoredEndpoint[EndpointT]]):
    """All candidates with their totals, in pool order; items are made at first access.

    Items are the same objects at every access. A picker should use the two plain lists if it can:
    1000 items cost 155 us, a third of a whole cycle.
    """

    __slots__ = ("_items", "endpoints", "scores")

    def __init__(self, endpoints: Sequence[EndpointT], scores: Sequence[float]) -> None:
        self.endpoints = endpoints
        self.scores = scores
        self._items: dict[int, ScoredEndpoint[EndpointT]] = {}

    @overload
    def __getitem__(self, index: int) -> ScoredEndpoint[EndpointT]: ...
    @overload
    def __getitem__(self, index: slice) -> list[ScoredEndpoint[EndpointT]]: ...
    def __getitem__(
        self, index: int | slice
    ) -> ScoredEndpoint[EndpointT] | list[ScoredEndpoint[EndpointT]]:
        if isinstance(index, slice):
            return [self[position] for position in range(len(self.scores))[index]]
        if index < 0:
            index = range(len(self.scores))[index]
        item = self._items.get(index)
        if item is None:
            item = self._items[index] = ScoredEndpoint(self.endpoints[index], self.scores[index])
        return item

    def is_own(self, item: object) -> bool:
        """Return whether ``item`` is one of these, and unchanged."""
        for position, own in self._items.items():
            if own is item:
                endpoints, scores = self.endpoints, self.scores
                return own.endpoint is endpoints[position] and own.score is scores[position]
        return False

    def __iter__(self) -> Iterator[ScoredEndpoint[EndpointT]]:
        return iter(self[:])

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(slots=True, eq=False)
class ProfileResult(Generic[EndpointT]):
    """The result of one profile."""

    profile: str
    endpoints: Sequence[ScoredEndpoint[EndpointT]] = ()
    """The picked endpoints, best first; empty if the profile failed."""
    scored: Sequence[ScoredEndpoint[EndpointT]] = ()
    """All endpoints that passed the filters, in pool order."""
    removed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the endpoints that each filter removed, by filter name, in filter order."""
    error: SchedulingError | None = None
    """Why the profile found no endpoint."""
    scores: ScoreColumns = NO_SCORES
    """What each scorer gave the endpoints of ``scored``, without the scorers that failed; dropped
    once the request is sent on."""
    preference: Sequence[float] = ()
    """What flow control added to their totals; empty if it has no preference."""


@dataclass(slots=True, eq=False)
class SchedulingResult(Generic[EndpointT]):
    """The outcome of one ``schedule()``."""

    profiles: Mapping[str, ProfileResult[EndpointT]]
    primary: str
    """Profile whose best endpoint becomes the destination."""
    destination: str = ""
    """``ip:port`` for the gateway instead of the endpoint's own; "" for its own."""

    @property
    def endpoints(self) -> Sequence[ScoredEndpoint[EndpointT]]:
        """The primary profile's endpoints, best first; at least one."""
        return self.profiles[self.primary].endpoints

    def drop_scores(self) -> None:
        """Drop the scorers' columns: those of 1000 endpoints take 100 KB."""
        for profile in self.profiles.values():
            profile.scores = NO_SCORES


def scores_of(result: SchedulingResult[EndpointT]) -> dict[str, dict[str, dict[str, float]]]:
    """Return each scorer's scores by profile, scorer and name of the endpoint.

    They are those of the decision, in [0, 1] and without weight. Call it before the request is sent
    on; afterwards they are dropped.
    """
    return {
        name: {
            scorer: {
                name_of(each.endpoint): score
                for each, score in zip(profile.scored, column, strict=True)
            }
            for (scorer, _), column in zip(*profile.scores, strict=True)
        }
        for name, profile in result.profiles.items()
    }
