"""Session affinity: the common part of the filter and the scorer.

Two strategies find the endpoint of a session. With ``encoded_endpoint_header`` the client stores
its name: every response has it in a header, which the client sends back. With ``session_id`` the
client sends an id, and each plugin instance stores the endpoint of that id
(:mod:`.session_bindings`); replicas do not share these bindings.

A session is bound to the endpoint of its first request (``PreRequest``). It is bound to another one
only if its endpoint was not among the final candidates. The scheduling result has these candidates,
so if an evaluation is repeated after a wait, the last one counts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol

import msgspec

from epp.observability.plugins import NO_PLUGIN_METRICS, PluginCounter, PluginMetrics
from epp.request_control.plugins import PreRequest, ResponseHead, ResponseHeader
from epp.scheduling import CycleState, Endpoint, LLMRequest, SchedulingResult, StateKey
from epp_plugins.pickers.columns import columns_of
from epp_plugins.session_bindings import SessionBindings
from epp_plugins.session_ids import usable_id
from epp_plugins.session_tokens import SessionTokens, TokenRefusal, key_of

_RESPONSE_HEADER: Final = "x-session-token"
_SESSION_HEADER: Final = "x-session-id"
_TTL_SECONDS: Final = 300.0
_SWEEP_SECONDS: Final = 10.0
_TOKENS = "encodedEndpointHeaderConfig"


class EncodedEndpointHeaderConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"
):
    """Parameters of the strategy ``encoded_endpoint_header``."""

    header: str = _RESPONSE_HEADER
    """Header of requests and responses with the token; case-insensitive."""
    key_file: str = ""
    """File with the key that signs tokens, at least 32 bytes; other tokens are then ignored. It is
    read when the plugin is created, so a new key needs another path, or a restart."""
    old_key_file: str = ""
    """File with the previous key, whose tokens are still valid."""
    ttl_seconds: Annotated[float, msgspec.Meta(ge=0.0, le=1e10)] = 0.0
    """Validity of a signed token after a response; 0 for no expiry."""
    ignore_unsigned: bool = False
    """Without a key, ignore the tokens of clients, because they can be forged."""


class SessionIdSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A source of session ids."""

    header: str = ""
    """Request header with the id."""
    attribute: str = ""
    """Name of a request attribute with the id, such as ``agent-identity``."""
    producer: str = ""
    """Plugin that writes the attribute, such as ``session-id-producer``, if its key names one."""


class SessionIdConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of the strategy ``session_id``."""

    sources: tuple[SessionIdSource, ...] = ()
    """Sources of the id; the first that has one is used. By default the header
    ``x-session-id``."""
    eviction_ttl_seconds: Annotated[float, msgspec.Meta(ge=0.0)] = _TTL_SECONDS
    """Seconds after which an unused binding expires; 0 for the default."""
    eviction_sweep_seconds: Annotated[float, msgspec.Meta(ge=0.0)] = _SWEEP_SECONDS
    """Interval at which expired bindings are removed; expired bindings are never used. 0 for the
    default."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``session-affinity-filter`` and ``session-affinity-scorer``."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    """Whether the client or this EPP stores the endpoint of a session."""
    encoded_endpoint_header_config: EncodedEndpointHeaderConfig = EncodedEndpointHeaderConfig()
    """Used with ``strategy: encoded_endpoint_header`` only."""
    session_id_config: SessionIdConfig = SessionIdConfig()
    """Used with ``strategy: session_id`` only."""
    profile_name: Annotated[str, msgspec.Meta(extra={"refers_to": "profile"})] = ""
    """Scheduling profile whose endpoint the session is bound to; "" for the primary one."""

    def __post_init__(self) -> None:
        if self.strategy != "session_id":
            self._check_tokens()
            return
        for index, source in enumerate(self.session_id_config.sources):
            where = f"sessionIdConfig.sources[{index}]"
            if bool(source.header.strip()) == bool(source.attribute.strip()):
                raise ValueError(f"{where}: set exactly one of `header` and `attribute`")
            if source.header.strip() and source.producer:
                raise ValueError(
                    f"{where}: `producer` belongs to an attribute: remove it, or set `attribute`"
                    " instead of `header`"
                )

    def _check_tokens(self) -> None:
        given = self.encoded_endpoint_header_config
        signed = {"oldKeyFile": given.old_key_file, "ttlSeconds": given.ttl_seconds}
        for name, value in signed.items():
            if value and not given.key_file:
                raise ValueError(f"{_TOKENS}.{name}: of no use without `keyFile`")


class _Strategy(Protocol):
    """How the endpoint of a session is found."""

    reads: tuple[StateKey[Any], ...]

    def endpoint_of(self, request: LLMRequest, state: CycleState) -> str:
        """Return the name of the session's endpoint, or ""."""

    def chosen(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        """Record a decision."""

    def answered(self, response: ResponseHead, served_by: Endpoint, state: CycleState) -> None:
        """Add headers for the client to the response."""


class SessionAffinity(PreRequest, ResponseHeader):
    """Finds the endpoint of a request's session, and records new ones."""

    keeps_result: ClassVar[bool] = True

    reads: tuple[StateKey[Any], ...]
    """Keys of the sources of session ids."""

    def __init__(
        self,
        name: str,
        params: Params,
        clock: Callable[[], float],
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        ignored = metrics.counter(
            self,
            "session_tokens_ignored_total",
            "Session tokens of clients that were ignored: too-long, malformed, unsigned, forged or"
            " expired.",
            ("reason",),
        )
        self._strategy: _Strategy = (
            _SessionId(params, clock)
            if params.strategy == "session_id"
            else _EncodedEndpointHeader(name, params, wall_clock, ignored)
        )
        self.reads = self._strategy.reads

    def dump_state(self) -> Mapping[str, object] | None:
        strategy = self._strategy
        return strategy.bindings.dump_state() if isinstance(strategy, _SessionId) else None

    def position_of_bound(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> int | None:
        """Return the position of the session's endpoint in ``endpoints``, or None."""
        name = self._strategy.endpoint_of(request, state)
        if not name:
            return None
        for position, endpoint in enumerate(endpoints):
            if endpoint.name == name:
                return position
        return None

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        self._strategy.chosen(request, result, state)

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        self._strategy.answered(response, served_by, state)


class _EncodedEndpointHeader:
    """The client sends back the token of the last response (:mod:`.session_tokens`)."""

    def __init__(
        self,
        name: str,
        params: Params,
        wall_clock: Callable[[], float],
        ignored: PluginCounter,
    ) -> None:
        self.reads: tuple[StateKey[Any], ...] = ()
        given = params.encoded_endpoint_header_config
        self._header = given.header.strip().lower() or _RESPONSE_HEADER
        files = {"keyFile": given.key_file, "oldKeyFile": given.old_key_file}
        self._tokens = SessionTokens(
            self._header,
            [key_of(f"{_TOKENS}.{name}", path) for name, path in files.items() if path],
            ttl_seconds=given.ttl_seconds,
            ignore_unsigned=given.ignore_unsigned,
        )
        self._wall_clock = wall_clock
        self._ignored = ignored
        self._profile = params.profile_name
        self._chosen: StateKey[str] = StateKey(f"session-affinity-endpoint/{name}")
        self._meant: StateKey[str] = StateKey(f"session-affinity-token/{name}")

    def endpoint_of(self, request: LLMRequest, state: CycleState) -> str:
        token = request.headers.get(self._header, "").strip()
        if not token:
            return ""
        # Cached per request, so that repeated evaluations count an ignored token once.
        name = state.read(self._meant)
        if name is None:
            found = self._tokens.endpoint_of(token, self._wall_clock())
            if isinstance(found, TokenRefusal):
                self._ignored.inc(found.value)
                found = ""
            name = found
            state.write(self._meant, name)
        return name

    def chosen(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        if self._profile not in ("", result.primary):
            state.write(self._chosen, _picked(result, self._profile))

    def answered(self, response: ResponseHead, served_by: Endpoint, state: CycleState) -> None:
        chosen = state.read(self._chosen)
        name = served_by.name if chosen is None else chosen
        if name:
            response.set_headers[self._header] = self._tokens.token_of(name, self._wall_clock())


class _SessionId:
    """The client sends an id, and the bindings have its endpoint."""

    def __init__(self, params: Params, clock: Callable[[], float]) -> None:
        config = params.session_id_config
        sources = config.sources or (SessionIdSource(header=_SESSION_HEADER),)
        self._sources: list[str | StateKey[object]] = [
            source.header.strip().lower()
            or StateKey(f"{source.attribute.strip()}/{source.producer.strip()}")
            for source in sources
        ]
        self.reads: tuple[StateKey[Any], ...] = tuple(
            source for source in self._sources if not isinstance(source, str)
        )
        self._profile = params.profile_name
        self.bindings = SessionBindings(
            ttl_seconds=config.eviction_ttl_seconds or _TTL_SECONDS,
            sweep_seconds=config.eviction_sweep_seconds or _SWEEP_SECONDS,
            clock=clock,
        )

    def endpoint_of(self, request: LLMRequest, state: CycleState) -> str:
        session = self._session_of(request, state)
        return self.bindings.endpoint_of(session) if session else ""

    def chosen(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        session = self._session_of(request, state)
        profile = self._profile or result.primary
        name = _picked(result, profile)
        if not session or not name:
            return
        bound = self.bindings.endpoint_of(session)
        if bound in ("", name) or not _could_pick(result, profile, bound):
            self.bindings.bind(session, name)

    def answered(self, response: ResponseHead, served_by: Endpoint, state: CycleState) -> None:
        """Nothing: the client knows its session."""

    def _session_of(self, request: LLMRequest, state: CycleState) -> str:
        for source in self._sources:
            given = request.headers.get(source) if isinstance(source, str) else state.read(source)
            if session := usable_id(given):
                return session
        return ""


def _picked(result: SchedulingResult, profile: str) -> str:
    """Return the name of the profile's best endpoint; "" if it did not run or found none."""
    found = result.profiles.get(profile)
    return found.endpoints[0].endpoint.name if found is not None and found.endpoints else ""


def _could_pick(result: SchedulingResult, profile: str, name: str) -> bool:
    """Return whether an endpoint of that name passed all filters of the profile."""
    endpoints, _ = columns_of(result.profiles[profile].scored)
    return any(endpoint.name == name for endpoint in endpoints)
