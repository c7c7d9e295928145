"""A decision of the endpoint picker, and the calls that an ext_proc stream makes on it.

They are made as far as the gateway's mode lets the endpoint picker see the response.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epp.ext_proc.response_body import is_worth_requesting
from epp.lab.envoy import Mode
from epp.lab.results import EppChoice
from epp.lab.simulation.routing import End, Route, RouterRefusal, Tokens
from epp.parsing.plugins import Usage
from epp.request_control import PREFIX_MATCHES, EndCause, ResponseSource, RoutedRequest

_EVICTED = RouterRefusal(429, "evicted by flow control")
_RESPONSE_HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
_CAUSES: Mapping[End, EndCause] = {
    End.COMPLETED: EndCause.COMPLETED,
    End.CUT: EndCause.CLIENT_DISCONNECT,
    End.GATEWAY: EndCause.COMPLETED,
    End.CLIENT_LEFT: EndCause.CLIENT_DISCONNECT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayView:
    """Facts about the gateway and the servers that all routes of a run share."""

    mode: Mode
    """Which parts of a response the gateway sends to the endpoint picker."""
    sample_usage: float
    """Share of the responses that are read in adaptive mode."""
    addresses: Sequence[str]
    """Addresses of the servers by index."""
    time: Callable[[], float]
    """The virtual clock."""
    catch_up: Callable[[], None]
    """Makes the scrapes that are due; called before the endpoint picker may see them."""


class PickerRoute(Route):
    """A decision of the endpoint picker."""

    __slots__ = ("_began_at", "_routed", "_sees_body", "_view")

    def __init__(
        self,
        view: GatewayView,
        routed: RoutedRequest,
        servers: Sequence[int],
        prefiller: int | None,
    ) -> None:
        super().__init__(servers)
        self._view = view
        self._routed = routed
        self._began_at: float | None = None
        self._sees_body = False
        self.choice = _choice(routed, None if prefiller is None else view.addresses[prefiller])
        self.prefiller = prefiller
        if routed.in_flight is not None:
            routed.on_revoked = self._revoke

    def served_by(self, server: int) -> None:
        self._view.catch_up()
        self._routed.served_by(self._view.addresses[server])

    def head(self, status: int, *, from_gateway: bool = False) -> Mapping[str, str]:
        routed, view = self._routed, self._view
        view.catch_up()
        if from_gateway:
            routed.response_source = ResponseSource.GATEWAY_FOR_SERVER
        mode = view.mode
        self._sees_body = mode is Mode.FULL_DUPLEX or (
            mode is Mode.ADAPTIVE
            and is_worth_requesting(routed, routed.request.request_id, view.sample_usage)
        )
        given = routed.response_started(
            status,
            _RESPONSE_HEADERS if routed.wants_response_headers else None,
            routed.endpoint.address,
        )
        return {name: value for name, value in given.items() if value is not None}

    def first_chunk(self) -> None:
        self._began_at = self._view.time()
        if self._sees_body:
            self._view.catch_up()
            self._routed.body_began()

    def end(self, end: End, tokens: Tokens | None) -> None:
        routed = self._routed
        cause = _CAUSES[end]
        pipeline = routed.pipeline
        if (
            tokens is None
            or pipeline.complete_without_usage
            or (self._sees_body and pipeline.response_complete)
            or routed.endpoint.load.observers
        ):  # otherwise nothing sees the scrapes: the release of a reservation only counts
            self._view.catch_up()
        if self._sees_body and self._began_at is not None:
            reads = tokens is not None and routed.find_reader is not None
            usage = Usage(tokens.prompt, tokens.output, tokens.cached) if tokens and reads else None
            routed.response_seen(
                usage,
                body_bytes=1 if tokens is None else tokens.output,
                began_at=self._began_at,
                ended_at=self._view.time(),
                is_whole=tokens is not None,
            )
        elif not self._sees_body and routed.status is not None:
            cause = EndCause.ENDED
        routed.close(cause)

    def _revoke(self) -> None:
        if self.on_revoked is not None:
            self._routed.close(EndCause.EVICTED)
            self.on_revoked(_EVICTED)


def _choice(routed: RoutedRequest, prefiller: str | None) -> EppChoice:
    """Return the choice; the prompt is computed at the address `prefiller`, if there is one."""
    matches = routed.state.read(PREFIX_MATCHES)
    decision = routed.decision
    stages = decision.stages.values()
    computes = next((each for each in stages if each.address == prefiller), decision.endpoint)
    queued = routed.queued
    return EppChoice(
        endpoint=decision.endpoint.name,
        predicted_cached_tokens=(
            None if matches is None else matches.blocks.get(computes.name, 0) * matches.block_size
        ),
        queue_seconds=None if queued is None else decision.decided_at - decision.received_at,
    )
